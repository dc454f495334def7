//! Against the `zeromq` crate, which greets as ZMTP 3.0.

use std::time::Duration;

use bytes::Bytes;
use testkit::servers::bind_again;
use tokio::time::timeout;
use transport::zmtp::{Dealer, Endpoint, Options, Pub, Router, Sub, SubEvent};
use zeromq::{DealerSocket, PubSocket, ReqSocket, RouterSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::support::*;

fn theirs(frames: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames).unwrap()
}

/// Sends from their publisher until our subscriber, whose subscription is on its way, has got a message.
async fn heard_from(publisher: &mut PubSocket, sub: &mut Sub) {
    let exchange = async {
        loop {
            publisher.send(theirs(numbered("kv", 7, 3))).await.unwrap();
            while let Ok(event) = timeout(Duration::from_millis(20), sub.next()).await {
                if let SubEvent::Message(frames) = event {
                    assert_eq!(frames, numbered("kv", 7, 3));
                    return;
                }
            }
        }
    };
    soon("a message", exchange).await;
}

/// Sends from our publisher until their subscriber has got a message.
async fn heard_by(publisher: &Pub, sub: &mut SubSocket) {
    let exchange = async {
        loop {
            publisher.send(numbered("kv", 7, 3));
            if let Ok(Ok(got)) = timeout(Duration::from_millis(20), sub.recv()).await {
                assert_eq!(got.into_vec(), numbered("kv", 7, 3));
                return;
            }
        }
    };
    soon("a message", exchange).await;
}

#[tokio::test]
async fn our_sub_follows_its_pub_through_restarts() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        let mut publisher = PubSocket::new();
        let bound: Endpoint = publisher.bind(&endpoint.to_string()).await.unwrap().to_string().parse().unwrap();
        let mut sub = Sub::connect(bound.clone(), b"kv", quick());
        assert_eq!(connected(&mut sub).await, 0);
        for _ in 0..3 {
            heard_from(&mut publisher, &mut sub).await;
            drop(publisher);
            disconnected(&mut sub).await;
            unlinked(&bound).await;
            publisher = rebind(&bound).await;
            assert_eq!(connected(&mut sub).await, 0);
        }
        heard_from(&mut publisher, &mut sub).await;
        publisher.send(theirs(numbered("other", 1, 1))).await.unwrap();
        for n in 0..2000 {
            publisher.send(theirs(numbered("kv", n, 1 + 37 * usize::try_from(n).unwrap()))).await.unwrap();
        }
        let mut got = message(&mut sub).await;
        while got == numbered("kv", 7, 3) {
            got = message(&mut sub).await;
        }
        for n in 0..2000 {
            assert_eq!(number(&got), n);
            if n < 1999 {
                got = message(&mut sub).await;
            }
        }
    }
}

/// Its socket file is removed by a task of its own, some time after the drop.
async fn unlinked(endpoint: &Endpoint) {
    if let Endpoint::Ipc(path) = endpoint {
        let gone = async {
            while path.exists() {
                tokio::task::yield_now().await;
            }
        };
        soon("the removal of a socket file", gone).await;
    }
}

/// Its listener may take a moment to let go of the port.
async fn rebind(endpoint: &Endpoint) -> PubSocket {
    let bind = async {
        loop {
            let mut publisher = PubSocket::new();
            if publisher.bind(&endpoint.to_string()).await.is_ok() {
                return publisher;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("the port", bind).await
}

#[tokio::test]
async fn its_sub_follows_our_pub_through_restarts() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        let mut publisher = Pub::bind(&endpoint, Options::default()).await.unwrap();
        let bound = publisher.endpoint();
        let mut sub = SubSocket::new();
        sub.connect(&bound.to_string()).await.unwrap();
        sub.subscribe("kv").await.unwrap();
        for _ in 0..2 {
            heard_by(&publisher, &mut sub).await;
            publisher.shutdown(Duration::from_secs(5)).await;
            publisher = bind_again(async || Pub::bind(&bound, Options::default()).await).await;
        }
        heard_by(&publisher, &mut sub).await;
        sub.unsubscribe("kv").await.unwrap();
        sub.subscribe("other").await.unwrap();
        let changed = async {
            loop {
                publisher.send(vec![Bytes::from_static(b"kv")]);
                publisher.send(vec![Bytes::from_static(b"other")]);
                if let Ok(Ok(got)) = timeout(Duration::from_millis(20), sub.recv()).await
                    && got.into_vec() == ["other"]
                {
                    break;
                }
            }
        };
        soon("another topic", changed).await;
        assert_eq!(publisher.subscribers(), 1);
        drop(sub);
        let gone = async {
            while publisher.subscribers() > 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("the end of their subscriber", gone).await;
    }
}

#[tokio::test]
async fn our_bound_sub_takes_its_connecting_pub() {
    let mut sub = Sub::bind(&loopback(0), b"kv", quick()).await.unwrap();
    for _ in 0..2 {
        let mut publisher = PubSocket::new();
        publisher.connect(&sub.endpoint().to_string()).await.unwrap();
        assert_eq!(connected(&mut sub).await, 0);
        heard_from(&mut publisher, &mut sub).await;
        drop(publisher);
        disconnected(&mut sub).await;
    }
}

#[tokio::test]
async fn our_dealer_reads_a_long_answer_of_its_router() {
    let mut router = RouterSocket::new();
    let bound: Endpoint = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string().parse().unwrap();
    let serve = async {
        for _ in 0..2 {
            let mut question = router.recv().await.unwrap().into_vec();
            let identity = question.remove(0);
            assert_eq!(question, [Bytes::new(), Bytes::from_static(b"go")]);
            for n in 0..3000 {
                let mut answer = vec![identity.clone()];
                answer.extend(numbered("", n, 400));
                router.send(theirs(answer)).await.unwrap();
            }
        }
        router
    };
    let ask = async {
        // One dealer per request, as the replay service wants it.
        for _ in 0..2 {
            let mut dealer = Dealer::connect(&bound, &Options::default()).await.unwrap();
            dealer.send(&[Bytes::new(), Bytes::from_static(b"go")]).await.unwrap();
            for n in 0..3000 {
                assert_eq!(number(&dealer.recv().await.unwrap()), n);
            }
        }
    };
    soon("the exchange", async { tokio::join!(serve, ask) }).await;
}

#[tokio::test]
async fn our_router_answers_its_dealer_and_its_req_through_restarts() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        for _ in 0..2 {
            let router = Router::bind(&endpoint, Options::default()).await.unwrap();
            let bound = router.endpoint().to_string();
            let serve = async {
                for _ in 0..2 {
                    let (identity, question) = router.recv().await;
                    assert_eq!(question, [Bytes::new(), Bytes::from_static(b"go")]);
                    for n in 0..100 {
                        router.send(&identity, &numbered("", n, 40)).await.unwrap();
                    }
                }
            };
            let ask = async {
                let mut dealer = DealerSocket::new();
                dealer.connect(&bound).await.unwrap();
                dealer.send(theirs(vec![Bytes::new(), Bytes::from_static(b"go")])).await.unwrap();
                for n in 0..100 {
                    assert_eq!(number(&dealer.recv().await.unwrap().into_vec()), n);
                }
                let mut req = ReqSocket::new();
                req.connect(&bound).await.unwrap();
                req.send(theirs(vec![Bytes::from_static(b"go")])).await.unwrap();
                // A REQ takes the delimiter off and sees the first answer only.
                assert_eq!(req.recv().await.unwrap().into_vec(), numbered("", 0, 40)[1..]);
            };
            soon("the exchange", async { tokio::join!(serve, ask) }).await;
            router.shutdown(Duration::from_secs(1)).await;
        }
    }
}
