// The least proxy that Go makes: io.Copy between two TCPConns, which its runtime does with splice(2).
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"runtime"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(runtime.Version())
		return
	}
	if len(os.Args) != 3 {
		log.Fatal("usage: LISTEN TO")
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go join(client.(*net.TCPConn), os.Args[2])
	}
}

func join(client *net.TCPConn, to string) {
	defer client.Close()
	dialled, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	upstream := dialled.(*net.TCPConn)
	defer upstream.Close()
	done := make(chan struct{})
	go func() {
		carry(upstream, client)
		close(done)
	}()
	carry(client, upstream)
	<-done
}

func carry(to, from *net.TCPConn) {
	io.Copy(to, from)
	to.CloseWrite()
}
