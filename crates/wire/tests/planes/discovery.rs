//! Every discovery document of a real worker, and ours.

use serde_json::json;
use testkit::dynamo;
use wire::discovery::{
    Bucket, ChannelTransport, Endpoint, EndpointId, EventChannel, EventSource, Key, Model, OpenAiWorker, Record, Scope, Transport,
    recovery_endpoint_name,
};

/// The documents of a worker: over ZMQ and TCP, or over NATS with two ranks.
fn documents(of: &str) -> Vec<(String, String, Record)> {
    let documents = dynamo::records(of);
    let text = |record: &serde_json::Value, field: &str| record[field].as_str().unwrap().to_owned();
    documents
        .iter()
        .map(|record| {
            let document = text(record, "document");
            (text(record, "key"), document.clone(), Record::from_json(document.as_bytes()).unwrap())
        })
        .collect()
}

#[test]
fn every_document_knows_its_key_and_is_written_again_byte_for_byte() {
    let documents = [documents("documents"), documents("documents_etcd")].concat();
    assert_eq!(documents.len(), 19);
    for (key, document, record) in &documents {
        assert_eq!(record.key().as_str(), key);
        assert_eq!(Key::parse(key).unwrap(), record.key());
        assert_eq!(record.to_json(), document.as_str(), "{key}");
    }
}

#[test]
fn the_documents_of_a_worker_say_how_it_is_reached() {
    const WORKER: u64 = 0x62cb_5ac0_962f_308b;
    let generate = EndpointId::new("dynamo", "backend", "generate");
    let (mut endpoints, mut models, mut channels, mut sources) = (0, 0, 0, 0);
    for (_, _, record) in documents("documents") {
        match record {
            Record::Endpoint(endpoint) => {
                let (address, path) = endpoint.transport.tcp_parts().unwrap();
                assert_eq!(path, endpoint.id.request_path(WORKER));
                assert_eq!(Endpoint::tcp(endpoint.id.clone(), WORKER, address), endpoint);
                assert_eq!(endpoint.id, generate.sibling(endpoint.id.endpoint.clone()));
                endpoints += 1;
            }
            Record::Model(Model { id, instance_id, suffix, card }) => {
                assert_eq!((id, instance_id, suffix), (generate.clone(), WORKER, None));
                assert_eq!((card.display_name(), card.block_size(), card.model_input()), (Some("tiny"), Some(16), Some("Tokens")));
                assert_eq!((card.total_blocks(), card.rank_start(), card.ranks()), (Some(4096), 0, 1));
                assert_eq!(card.migration_limit(), 0);
                models += 1;
            }
            Record::EventChannel(EventChannel { scope, transport, .. }) => {
                assert_eq!(scope, generate.scope());
                assert!(matches!(transport, ChannelTransport::Zmq { endpoint } if endpoint.starts_with("tcp://127.0.0.1:")));
                channels += 1;
            }
            Record::EventSource(source) => {
                assert_eq!((source.worker_id, source.dp_rank), (WORKER, 0));
                assert_eq!((&source.scope, &source.kv_state_endpoint), (&generate.scope(), &generate));
                let target = source.recovery_target.unwrap();
                assert_eq!(target.id.endpoint, recovery_endpoint_name(source.publisher_id));
                sources += 1;
            }
            Record::OpenAiWorker(worker) => panic!("{worker:?}"),
        }
    }
    assert_eq!((endpoints, models, channels, sources), (2, 1, 4, 1));
}

#[test]
fn over_nats_each_rank_has_a_source_and_instances_are_leases() {
    const WORKER: u64 = 7_587_899_265_496_584_197;
    assert!(dynamo::records("documents_etcd").iter().all(|record| record["lease"] == WORKER));
    let documents = documents("documents_etcd");
    let records = documents.iter().map(|(_, _, record)| record);
    let sources = records.clone().filter_map(|record| if let Record::EventSource(source) = record { Some(source) } else { None });
    let mut ranks: Vec<u32> = sources
        .map(|source| {
            assert_eq!(source.worker_id, WORKER);
            let recovery = recovery_endpoint_name(source.publisher_id);
            let target = source.recovery_target.as_ref().unwrap();
            assert_eq!(target.transport, Transport::NatsTcp(format!("dynamo_backend.{recovery}-{WORKER:x}")));
            source.dp_rank
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1]);
    let prefix = ChannelTransport::Nats { subject_prefix: EndpointId::new("dynamo", "backend", "generate").subject_prefix() };
    let mut channels = records.filter_map(|record| if let Record::EventChannel(channel) = record { Some(channel) } else { None });
    assert!(channels.all(|channel| channel.transport == prefix));
}

#[test]
fn scopes_and_transports_of_the_other_kinds() {
    let scope = |value: serde_json::Value| serde_json::from_value::<Scope>(value).unwrap();
    let namespace = scope(json!({"kind": "namespace", "name": "a.b/c"}));
    assert_eq!((namespace.path().as_str(), namespace.subject_prefix().as_str()), ("namespace/a%2Eb%2Fc", "namespace.a%2Eb%2Fc"));
    let component = scope(json!({"kind": "component", "namespace": "n", "component": "c_-é"}));
    assert_eq!(component.path(), "namespace/n/component/c_-%C3%A9");
    assert_eq!(component.subject_prefix(), "namespace.n.component.c_-%C3%A9");
    assert_eq!(EndpointId::new("n", "c", "e").subject_prefix(), "namespace.n.component.c.endpoint.e");

    let channel = |transport: &str| {
        let scope = r#"{"kind":"component","namespace":"n","component":"c"}"#;
        let text =
            format!(r#"{{"type":"EventChannel","scope":{scope},"topic":"t","instance_id":18446744073709551615,"transport":{transport}}}"#);
        let record = Record::from_json(text.as_bytes()).unwrap();
        assert_eq!(record.to_json(), text);
        assert_eq!(record.key().as_str(), "v1/event_channels/namespace/n/component/c/topic/t/ffffffffffffffff");
        assert_eq!(record.key().id(), Some(u64::MAX));
        let Record::EventChannel(channel) = record else { panic!() };
        channel.transport
    };
    let nats = channel(r#"{"kind":"Nats","config":{"subject_prefix":"namespace.n.component.c"}}"#);
    assert_eq!(nats, ChannelTransport::Nats { subject_prefix: component_prefix() });
    let broker = channel(r#"{"kind":"ZmqBroker","config":{"xsub_endpoints":["a"],"xpub_endpoints":["b","c"]}}"#);
    assert!(matches!(broker, ChannelTransport::ZmqBroker { xpub_endpoints, .. } if xpub_endpoints == ["b", "c"]));

    let endpoint = |transport: &str, more: &str| {
        let text = format!(
            r#"{{"type":"Endpoint","component":"c","endpoint":"e","namespace":"n","instance_id":9,"transport":{transport}{more}}}"#
        );
        let record = Record::from_json(text.as_bytes()).unwrap();
        assert_eq!(record.to_json(), text);
        let Record::Endpoint(endpoint) = record else { panic!() };
        endpoint
    };
    let over_nats = endpoint(r#"{"nats_tcp":"n_c.e-9"}"#, r#","request_plane_codec":"msgpack""#);
    assert_eq!(over_nats.transport, Transport::NatsTcp("n_c.e-9".to_owned()));
    let other = endpoint(r#"{"quic":{"port":1}}"#, "");
    assert_eq!(other.transport, Transport::Other(json!({"quic": {"port": 1}})));
    assert_eq!((other.request_plane_codec, other.transport.tcp_parts()), (None, None));
}

fn component_prefix() -> String {
    Scope::Component { namespace: "n".to_owned(), component: "c".to_owned() }.subject_prefix()
}

#[test]
fn a_live_only_source_has_no_recovery_target_and_unknown_fields_are_skipped() {
    let id = EndpointId::new("n", "c", "e");
    let source = EventSource {
        scope: id.scope(),
        topic: "kv-events".to_owned(),
        publisher_id: 7,
        kv_state_endpoint: id.clone(),
        worker_id: u64::MAX,
        dp_rank: 3,
        recovery_target: None,
    };
    let text = Record::from(source.clone()).to_json();
    assert!(!text.windows(15).any(|bytes| bytes == b"recovery_target"));
    let text = std::str::from_utf8(&text).unwrap().replacen('{', r#"{"later":{"x":[1]},"#, 1);
    assert_eq!(Record::from_json(text.as_bytes()).unwrap(), Record::EventSource(source));
}

#[test]
fn an_engine_beside_a_sidecar_has_a_bucket_of_its_own() {
    let worker = OpenAiWorker {
        id: EndpointId::new("dynamo", "backend", "generate"),
        instance_id: 0xdead_beef_dead_beef,
        url: "http://10.0.0.1:8000".to_owned(),
        model: "m".to_owned(),
        block_size: Some(16),
        dp_start: 2,
        dp_size: 4,
        no_events: None,
    };
    let silent = Record::from(OpenAiWorker { no_events: Some("the engine publishes none".to_owned()), ..worker.clone() });
    assert_eq!(Record::from_json(&silent.to_json()).unwrap(), silent);
    let record = Record::from(worker);
    let text = record.to_json();
    assert!(!text.windows(9).any(|bytes| bytes == b"no_events"), "{text:?}");
    assert!(text.starts_with(br#"{"type":"OpenAiWorker","namespace":"dynamo","#), "{text:?}");
    assert_eq!(Record::from_json(&text).unwrap(), record);
    assert_eq!(record.key().as_str(), "v1/openai_workers/dynamo/backend/generate/deadbeefdeadbeef");
    assert_eq!(record.key().bucket(), Bucket::OpenAiWorkers);
}

#[test]
fn keys_are_of_known_buckets_and_have_a_rest() {
    let key = Key::parse("v1/mdc/n/c/e/62cb5ac0962f308b/adapter").unwrap();
    assert_eq!((key.bucket(), key.rest(), key.id()), (Bucket::Mdc, "n/c/e/62cb5ac0962f308b/adapter", None));
    for odd in ["", "v1", "v1/", "v1/mdc", "v1/mdc/", "v1/mdc2/x", "v2/mdc/x", "/v1/mdc/x", "v1//mdc/x"] {
        assert!(Key::parse(odd).is_err(), "{odd}");
    }
    for bucket in Bucket::ALL {
        let key = Key::new(bucket, "x/1f");
        assert_eq!(Key::parse(key.as_str()).unwrap(), key);
        assert!(key.as_str().starts_with(&bucket.prefix()));
        assert_eq!(key.id(), Some(0x1f));
    }
}
