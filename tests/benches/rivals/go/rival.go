// The least proxy that Go makes: io.Copy between two connections of TCP or Unix, which its runtime does with splice(2) where
// it knows how.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"strings"
)

// Either a TCPConn or a UnixConn; what io.Copy does depends on which it really is.
type conn interface {
	net.Conn
	CloseWrite() error
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(runtime.Version())
		return
	}
	if len(os.Args) != 3 {
		log.Fatal("usage: LISTEN TO")
	}
	listener, err := net.Listen(address(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go join(client.(conn), os.Args[2])
	}
}

// The network and the place in it of ip:port or unix:/path.
func address(text string) (string, string) {
	if strings.HasPrefix(text, "unix:") {
		return "unix", strings.TrimPrefix(text, "unix:")
	}
	return "tcp", text
}

func join(client conn, to string) {
	defer client.Close()
	dialled, err := net.Dial(address(to))
	if err != nil {
		return
	}
	upstream := dialled.(conn)
	defer upstream.Close()
	done := make(chan struct{})
	go func() {
		carry(upstream, client)
		close(done)
	}()
	carry(client, upstream)
	<-done
}

func carry(to, from conn) {
	io.Copy(to, from)
	to.CloseWrite()
}
