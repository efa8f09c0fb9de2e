//! Errors of nodes and tools: permissions, settings, records and buses that they cannot run with.

use super::{Cluster, PATIENCE, inside, is_ready, overwrite};
use crate::bus::{Bus, bus, bus_with};
use crate::process::fetch;

use std::time::Instant;

/// Users of a bus, each with further settings.
fn users(users: &[(String, &str)]) -> String {
    let each = |(name, more): &(String, &str)| format!("{{ user: \"{name}\", password: \"p\"\n{more} }}\n");
    format!("authorization {{ users: [\n{}] }}\n", users.iter().map(each).collect::<String>())
}

fn login(name: &str, bus: &Bus) -> String {
    format!("nats://{name}:p@{}", bus.url)
}

#[test]
fn the_printed_permissions_are_what_a_node_and_a_tool_need_and_no_more() {
    let cluster = Cluster::at("127.0.0.1:4222");
    let [n1, n2] = ["n1", "n2"]
        .map(|node| cluster.act(node, &["init", "--print-permissions"]).expect("they depend on no server"));
    // Accounts that lack one line each.
    let lines: Vec<&str> = n1.lines().map(str::trim).filter(|line| line.starts_with('"')).collect();
    let without: Vec<(String, String)> = lines
        .iter()
        .enumerate()
        .map(|(index, line)| (format!("without-{index}"), n1.replace(line, "\"throng.none\"")))
        .collect();
    let mut accounts = vec![("admin".to_owned(), ""), ("n1".to_owned(), &n1), ("n2".to_owned(), &n2)];
    accounts.extend(without.iter().map(|(name, permissions)| (name.clone(), permissions.as_str())));
    let Some(bus) = bus_with(&users(&accounts)) else { return };
    for (file, account, node) in [("admin", "admin", "n1"), ("n1", "n1", "n1"), ("n2", "n2", "n2")] {
        cluster.configure(file, &login(account, &bus), &format!("node = \"{node}\""));
    }
    let why = cluster.act("n1", &["init"]).expect_err("a node makes no buckets");
    assert!(why.contains("STREAM.CREATE") && why.contains("--print-permissions"), "{why}");
    cluster.act("admin", &["init"]).expect("it makes the bucket");

    let (mut n1, n2) = (cluster.start("n1"), cluster.start("n2"));
    cluster.homes();
    assert!(is_ready(&n1) && is_ready(&n2));
    let checked = cluster.act("n2", &["check"]).expect("all is well");
    assert!(checked.contains("all permissions are there"), "{checked}");
    for words in [&["status"][..], &["worlds"], &["where", "hub"], &["undrain", "n1"]] {
        cluster.act("n2", words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
    }
    let left = cluster.act("n2", &["drain", "n1", "--wait"]).expect("it has no players");
    assert_eq!(left, "n1 has left\n");
    assert!(n1.process.0.wait().expect("it ends").success());
    assert_eq!(cluster.homes(), ["n2"; 4]);
    let why = cluster.act("n2", &["drain", "n2", "--wait", "100ms"]).expect_err("no other node has room");
    assert!(why.contains("n2 still has worlds") && why.contains("undrain n2"), "{why}");
    cluster.act("n2", &["undrain", "n2"]).expect("it goes on");
    cluster.act("n2", &["close", "duel"]).expect("it closes");

    // Each line is needed, and what it permits is named where it is missing.
    for ((account, _), line) in without.iter().zip(&lines) {
        cluster.configure("n3", &login(account, &bus), "node = \"n1\"");
        let why = cluster.act("n3", &["check"]).expect_err(line);
        let subject = line.trim_matches('"').trim_end_matches('>');
        assert!(why.contains(subject) && why.contains("--print-permissions"), "{line}: {why}");
    }
    let said = cluster.refused("n3");
    assert!(said.contains("_INBOX") && said.contains("--print-permissions"), "{said}");
}

#[test]
fn what_a_node_cannot_run_with_is_named_before_it_is_ready() {
    let cluster = Cluster::at("127.0.0.1:1");
    let class = |lines: &str| format!("node = \"n3\"\n[[gateway.classes]]\n{lines}");
    let refused = |cluster: &Cluster, url: &str, lines: &str, parts: &[&str]| {
        cluster.configure("n3", url, lines);
        let said = cluster.refused("n3");
        assert!(parts.iter().all(|part| said.contains(part)), "{lines}: {said}");
    };
    for (lines, parts) in [
        ("node = \"N_3\"", ["cluster.node", "lower-case letters"]),
        (&class("name = \"cup\"\nlimits.channels_max = \"many\""), ["channels_max", "many"]),
        (&class("name = \"cup\"\nlimit.channels_max = 7"), ["`gateway.classes.limit`", "throng world class"]),
        (&class("name = \"default\""), ["`default`", "another name"]),
        ("node = \"n3\"", ["cannot connect to NATS", "is nats-server running there?"]),
    ] {
        refused(&cluster, "127.0.0.1:1", lines, &parts);
    }

    // An account without JetStream, and one without room.
    let accounts = "accounts { none { users [{ user: none, password: p }] }
        small { jetstream { max_file: 1M }, users [{ user: small, password: p }] } }";
    let Some(bus) = bus_with(accounts) else { return };
    refused(&cluster, &login("none", &bus), "node = \"n3\"", &["has no JetStream", "--jetstream"]);
    let why = cluster.act("n3", &["init"]).expect_err("no JetStream");
    assert!(why.contains("has no JetStream") && why.contains("--jetstream"), "{why}");
    cluster.configure("n3", &login("small", &bus), "node = \"n3\"");
    let why = cluster.act("n3", &["init"]).expect_err("no room");
    assert!(why.contains("no room") && why.contains("account's limit"), "{why}");
    drop(bus);
    let Some(bus) = bus_with("jetstream { max_file_store: 1M }") else { return };
    cluster.configure("n3", &bus.url, "node = \"n3\"");
    let why = cluster.act("n3", &["init"]).expect_err("no room");
    assert!(why.contains("no room") && why.contains("max_file_store"), "{why}");
    drop(bus);

    // A bucket of a later format, and a node on another machine.
    let Some(bus) = bus_with("") else { return };
    let cluster = Cluster::ready(&bus);
    let far = r#"{"incarnation":1,"nonce":1,"state":"up","release":"0","folder":"f","boot":"far","worlds_max":1,
        "free_worlds":0}"#;
    overwrite(&bus, "node.far", far);
    let said = cluster.refused("n1");
    assert!(said.contains("127.0.0.1") && said.contains("`cluster.advertise`"), "{said}");
    overwrite(&bus, "cluster", r#"{"format":2,"name":"test","key_id":"k"}"#);
    let said = cluster.refused("n1");
    assert!(said.contains("format 2") && said.contains("use a release"), "{said}");
}

#[test]
fn records_that_cannot_be_read_and_names_that_do_not_exist_are_named() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::ready(&bus);
    let n1 = cluster.start("n1");
    cluster.homes();
    for words in [["undrain", "n2"], ["drain", "n2"]] {
        let why = cluster.act("n1", &words).expect_err("it does not exist");
        assert!(why.contains("no node `n2`") && why.contains("did you mean `n1`?"), "{why}");
    }
    let why = cluster.act("n1", &["close", "main"]).expect_err("it is the default world");
    assert!(why.contains("default world"), "{why}");
    // One that is damaged, and one with an epoch that has no successor.
    let last = r#"{"epoch":18446744073709551615,"home":{"node":"n1","incarnation":1},"state":"serving",
        "class":"default","class_hash":"h","nonce":1}"#;
    overwrite(&bus, "world.duel", "{}");
    overwrite(&bus, "world.arena", last);
    for (name, part) in [("duel", "missing field"), ("arena", "limit of epochs")] {
        let why = cluster.act("n1", &["close", name]).expect_err("it cannot be read");
        let way = format!("`nats kv del throng-test-dir world.{name}`, then `throng world open {name}`");
        assert!(why.contains(&way) && why.contains(part), "{why}");
    }
    let until = Instant::now() + PATIENCE;
    while !fetch(&n1.admin, "/metrics")
        .expect("it answers")
        .contains("\nthrong_cluster_records_unreadable 2\n")
    {
        assert!(Instant::now() < until, "it counts them");
    }
    let status = cluster.act("n1", &["status"]).expect("it answers");
    assert!(status.contains("world.duel") && status.contains("world.arena"), "{status}");
    assert!(inside(&n1, "duel", "servers").is_none() && inside(&n1, "hub", "servers").is_some());
}

#[test]
fn a_bus_with_too_few_servers_and_a_bucket_of_others_are_refused() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    let text = std::fs::read_to_string(cluster.path("n1.toml")).expect("it is there");
    std::fs::write(cluster.path("n3.toml"), text.replace("replicas = 1", "replicas = 3")).expect("written");
    let why = cluster.act("n3", &["init"]).expect_err("one server");
    assert!(why.contains("cluster.replicas = 1"), "{why}");
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let why = cluster.refused("n3");
    assert!(why.contains("1 replicas") && why.contains("`cluster.replicas` is 3"), "{why}");
    cluster.configure("n2", &bus.url, "node = \"n2\"\nadvertise = [\"client=tcp://0.0.0.0:12108\"]");
    let why = cluster.refused("n2");
    assert!(why.contains("`cluster.advertise`") && why.contains("HOST:PORT"), "{why}");
}
