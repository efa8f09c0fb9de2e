//! A draft of a rule set tried through the service.

use serde_json::{Value, json};
use throng_matcher::{Config, Scope};
use throng_matcher_server::{Durability, Options, Policies, Service, Tokens, start};
use throng_wire::matcher::{Method, Status, Writer};

/// More than are copied in one step.
const TICKETS: u64 = 3_001;

fn serve() -> Service {
    let options = Options {
        addr: None,
        unix: None,
        tls: None,
        config: Config::default(),
        durability: Durability::None,
        fs: None,
        tokens: Tokens::default(),
        area: String::new(),
        secret: [3; 32],
        salvage: false,
        policies: Policies::default(),
        gate: throng_matcher_server::Gate::default(),
    };
    start(options).unwrap()
}

fn rules(near: u32) -> Value {
    json!({
        "name": "duel", "timeout_s": 600,
        "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
        "attributes": {"skill": {"type": "number", "default": 0}},
        "rules": [{"name": "near", "type": "near", "key": "skill", "max": near}],
    })
}

#[test]
fn a_trial_is_answered_while_the_matcher_goes_on() {
    let service = serve();
    let handle = service.handle();
    let call = |method, body: Writer| {
        let (status, _) = handle.call_and_wait("s", Scope::Admin, method, body.into_bytes()).unwrap();
        assert_eq!(status, Status::Ok);
    };
    call(Method::PUT_QUEUE, Writer::new().str(1, &rules(5).to_string()));
    for number in 0..TICKETS {
        let skill = Writer::new().str(1, "skill").str(2, &(10 * number).to_string());
        let player = Writer::new().str(1, &format!("r{number}")).nested(3, skill);
        call(Method::CREATE_TICKET, Writer::new().str(1, "duel").nested(2, player));
    }
    let ask = |request: Value| handle.ask_json("TryQueue", &request.to_string());
    let answer = ask(json!({"RuleSet": rules(50_000), "Seconds": 30})).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["PoolSize"], &answer["Copied"]), (&json!(TICKETS), &json!(TICKETS)));
    assert_eq!((&answer["Live"]["Matches"], &answer["Live"]["Left"]), (&json!(0), &json!(TICKETS)));
    assert_eq!((&answer["Draft"]["Matches"], &answer["Draft"]["Left"]), (&json!(1_500), &json!(1)));
    assert_eq!(answer["Draft"]["SpreadP50"], json!(10.0));
    let (code, problem) = ask(json!({"RuleSet": {"name": "duel", "sides": 5}})).unwrap_err();
    assert!(code == 400 && problem.contains("RULE_INVALID") && problem.contains("Path"), "{problem}");
    let queues = handle.ask_json("ListQueues", "{}").unwrap();
    assert!(queues.contains(&format!("\"PoolSize\":{TICKETS}")), "{queues}");
}
