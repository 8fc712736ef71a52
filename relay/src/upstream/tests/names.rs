//! What is known of a name, by what its name server says or does not.

use super::*;

/// A name server on loopback that answers every question in one way, which can be changed.
struct NameServer {
    at: SocketAddr,
    way: Arc<Mutex<Way>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Here,
    /// There is no such name.
    Nothing,
    /// The server itself is in trouble.
    Fails,
}

impl NameServer {
    fn start(way: Way) -> Self {
        use hickory_resolver::proto::{
            op::{Message, OpCode, ResponseCode},
            rr::{RData, Record, RecordType, rdata::A},
        };
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let way = Arc::new(Mutex::new(way));
        let answers = way.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let question = Message::from_vec(&buffer[..length]).unwrap();
                let query = question.queries[0].clone();
                let mut answer = Message::response(question.metadata.id, OpCode::Query);
                match *answers.lock().unwrap() {
                    Way::Here if query.query_type() == RecordType::A => {
                        let here = RData::A(A::new(127, 0, 0, 1));
                        answer.add_answer(Record::from_rdata(query.name().clone(), 1, here));
                    }
                    Way::Here => (),
                    Way::Nothing => answer.metadata.response_code = ResponseCode::NXDomain,
                    Way::Fails => answer.metadata.response_code = ResponseCode::ServFail,
                }
                answer.add_query(query);
                socket.send_to(&answer.to_vec().unwrap(), from).unwrap();
            }
        });
        Self { at, way }
    }

    fn answers(&self, way: Way) {
        *self.way.lock().unwrap() = way;
    }
}

/// A name that is followed, and gives up what it knows after `grace`.
fn followed(names: &Names, grace: Duration) -> (Arc<Entry>, tokio::task::JoinHandle<()>) {
    let entry = Entry::new(named("db.test.", 80).remove(0)).impatient(grace);
    let entry = Arc::new(entry);
    let following = tokio::spawn({
        let (entry, names) = (entry.clone(), names.clone());
        async move { entry.follow("test", &names).await }
    });
    (entry, following)
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_name_at_which_there_is_nothing_is_given_up_after_some_time() {
    let server = NameServer::start(Way::Here);
    let names = Names::new(vec![server.at]);
    let (patient, following) = followed(&names, HOUR);
    let (entry, other) = followed(&names, SOON);
    let known = |entry: &Entry| entry.endpoints().len() == 1;
    until(|| known(&entry) && known(&patient)).await;
    server.answers(Way::Nothing);
    until(|| entry.endpoints().is_empty()).await;
    assert!(known(&patient), "not for one answer");
    server.answers(Way::Here);
    until(|| known(&entry)).await;
    following.abort();
    other.abort();
}

#[tokio::test]
async fn a_name_server_that_fails_says_nothing() {
    let server = NameServer::start(Way::Here);
    let names = Names::new(vec![server.at]);
    let (entry, following) = followed(&names, Duration::ZERO);
    until(|| entry.endpoints().len() == 1).await;
    server.answers(Way::Fails);
    until(|| entry.fault().is_some()).await;
    assert!(!names.is_gone(&entry.upstream, None).await);
    assert_eq!(entry.endpoints().len(), 1);
    following.abort();
}

#[tokio::test]
async fn other_name_servers_are_asked_at_once() {
    let (silent, server) = (NameServer::start(Way::Fails), NameServer::start(Way::Here));
    let names = Names::new(vec![silent.at]);
    let (entry, following) = followed(&names, HOUR);
    until(|| entry.fault().is_some()).await;
    assert!(entry.endpoints().is_empty());
    names.ask(vec![server.at]);
    until(|| entry.endpoints().len() == 1).await;
    following.abort();
}
