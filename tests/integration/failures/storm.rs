//! Many streams at once while a worker is killed: each client gets its whole answer or one error, nobody gets both or
//! neither.

use http::StatusCode;
use mocker::Faults;

use super::{
    rig::{Rig, Shape},
    sse::{assert_broken, assert_finished},
};
use crate::support::{eventually, http::Ending, seen};

const STREAMS: usize = 200;
const TOKENS: u32 = 60;

/// Answered in full or broken off in good form; true in the first case.
fn is_answered(ending: &Ending) -> bool {
    assert_eq!(ending.answer.status, StatusCode::OK, "two workers are left to go to: {}", ending.answer.text());
    if ending.whole {
        assert_finished(ending, TOKENS);
    } else {
        assert_broken(ending, "worker_closed");
    }
    ending.whole
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_streams_survive_a_killed_worker_or_end_with_one_error() {
    let rig = Rig::start(3, &[]).await;
    let prompts: Vec<Vec<u32>> = (0..STREAMS).map(|_| rig.prompt()).collect();
    let streams = futures_util::future::join_all(prompts.iter().map(|prompt| rig.ask(prompt, Shape::Stream, TOKENS)));
    let kill = async {
        eventually("every worker is busy", async || {
            let running = [0, 1, 2].map(|position| rig.running(position));
            seen(running.iter().all(|running| *running > 20), running)
        })
        .await;
        rig.break_worker(0, Faults { refuse: true, ..Faults::default() });
    };
    let (endings, ()) = tokio::join!(streams, kill);
    let answered = endings.iter().filter(|ending| is_answered(ending)).count();
    let broken = STREAMS - answered;
    assert!(broken > 0, "the worker died with streams open");
    assert!(answered >= STREAMS / 2, "the streams of the other two are left alone: {answered}");
    assert!(endings.iter().filter(|ending| !ending.whole).all(|ending| ending.answer.worker() == rig.id(0)));
    rig.idle().await;
    let broken_off = rig.frontend.metric("dynamo_frontend_requests_total").await;
    assert_eq!(broken_off, Some(STREAMS as f64), "each request is counted once");
    let page = rig.frontend.get("/metrics").await.text();
    assert!(page.contains(&format!(r#"request_type="stream",status="broken"}} {broken}"#)), "{page}");
    rig.mend();
    rig.routable(3).await;
    rig.idle().await;
}
