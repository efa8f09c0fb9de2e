//! Every way to get the configuration wrong is told with its place and a way out.

use throng_server::config::{Config, Loader, Origin, Problem, ProblemKind, Problems};

fn load(text: &str) -> Result<Config, Problems> {
    Loader::new().text("throng.toml", text).load()
}

fn only_problem(text: &str) -> Problem {
    let mut problems = load(text).expect_err(text).0;
    assert_eq!(problems.len(), 1, "{text}: {problems:#?}");
    problems.remove(0)
}

#[test]
fn every_wrong_entry_of_a_list_is_told_under_its_key() {
    let text = "[ddc]\nkeep_namespaces = ['A B', 'ok', 'C D']\n[ddc.quotas]\ngame = 'much'\nart = 'more'\n\
                [gateway]\ntrusted_proxies = ['10.0.0.0/33', 'no']\n";
    let problems = load(text).expect_err(text).0;
    let mut told: Vec<String> = problems.iter().map(|problem| problem.message.clone()).collect();
    told.sort();
    let keys = told.iter().map(|message| message.split('`').nth(1).unwrap_or_default());
    let expected = ["ddc.keep_namespaces", "ddc.quotas", "gateway.trusted_proxies"];
    assert_eq!(keys.collect::<Vec<_>>(), expected.map(|key| [key; 2]).concat(), "{told:#?}");
}

#[test]
fn the_cache_may_have_the_address_of_the_admin_listener() {
    let text = "[server]\nonly = ['ddc']\n[ddc]\naddr = '127.0.0.1:8558'\n[http]\naddr = '127.0.0.1:8558'\n";
    assert!(load(text).is_ok(), "{:?}", load(text).err());
    let matcher = text.replace("[ddc]", "[matcher]").replace("'ddc'", "'matcher'");
    assert_eq!(only_problem(&matcher).kind, ProblemKind::Conflict);
}

#[test]
fn one_mistake_gives_one_problem_with_line_column_and_hint() {
    use ProblemKind::{BadReference, BadValue, Conflict, Syntax, UnknownKey, UnsafeBind};
    // text, kind, line, column, words that must stand in the rendered problem
    let table: &[(&str, ProblemKind, usize, usize, &[&str])] = &[
        ("[gatway]\n", UnknownKey, 1, 2, &["`gatway`", "did you mean `gateway`?", "allowed at the top"]),
        ("\n\n  gatway.dev = true", UnknownKey, 3, 3, &["did you mean `gateway`?"]),
        ("[server]\nshrads = 2\n", UnknownKey, 2, 1, &["`server.shrads`", "did you mean `shards`?"]),
        ("[gateway.client]\n", UnknownKey, 1, 10, &["did you mean `clients`?"]),
        ("[gateway]\nserver = 1\n", UnknownKey, 2, 1, &["did you mean `servers`?"]),
        ("[server]\njwt_issuer = 'x'\n", UnknownKey, 2, 1, &["`gateway.auth.jwt_issuer`"]),
        ("[gateway]\nworlds = ['A']\n", BadValue, 2, 1, &["`A` is not a name", "lower-case"]),
        ("[gateway]\nworlds = ['a', 'a']\n", BadValue, 2, 1, &["twice"]),
        ("[gateway]\nworlds = ['main']\n", BadValue, 2, 1, &["default world"]),
        (
            "[gateway]\nworlds = ['a:duel']\n",
            BadReference,
            2,
            1,
            &["the class `duel`", "[[gateway.classes]]"],
        ),
        (
            "[gateway]\nworlds = ['a:dule']\n[[gateway.classes]]\nname = 'duel'\n",
            BadReference,
            2,
            1,
            &["`dule`", "did you mean `duel`?"],
        ),
        ("[[gateway.classes]]\nname = 'Duel'\n", BadValue, 2, 1, &["`Duel` is not a name: 1 to 18"]),
        ("[[gateway.classes]]\nopen = true\n", BadValue, 1, 1, &["`` is not a name"]),
        ("[gateway]\nclasses = 'duel'\n", BadValue, 2, 11, &["list of tables", "[[gateway.classes]]"]),
        ("[gateway.classes]\nname = 'duel'\n", BadValue, 1, 1, &["list of tables"]),
        (
            "[[gateway.classes]]\nname = 'a'\n[[gateway.classes]]\nname = 'a'\n",
            Conflict,
            4,
            1,
            &["two classes have the name `a`"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nshards = 2\n",
            BadValue,
            3,
            10,
            &["`gateway.classes.shards`", "found the number 2", "one of \"1\", \"all\""],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nconections_max = 9\n",
            UnknownKey,
            3,
            1,
            &["did you mean `connections_max`?", "throng world class"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nlimits.connections_max = 9\n",
            UnknownKey,
            3,
            8,
            &["set `connections_max` of the class itself"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nauth.kind = 'none'\n",
            UnknownKey,
            3,
            1,
            &["`gateway.classes.auth`"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\n[gateway.classes.limits]\nchannels_max = 0\n",
            BadValue,
            4,
            16,
            &["`gateway.classes.limits.channels_max`", "found 0", "integer from 1"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nchannels = 'nope'\n",
            BadReference,
            2,
            1,
            &["the class `a`", "nope"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nopen = true\ncreate = true\n",
            Conflict,
            4,
            1,
            &["has no limit of connections", "set `connections_max`"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\ncreate = true\nconnections_max = 9\n",
            Conflict,
            3,
            1,
            &["may not be entered", "set `open = true`"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nopen = true\ncreate = true\nconnections_max = 9\nworld_idle_s = 0\n",
            Conflict,
            4,
            1,
            &["keeps empty worlds for ever", "set `world_idle_s`"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nconnections_max = 70000\n",
            Conflict,
            3,
            1,
            &["of the class `a` is 70000", "65536 (`gateway.limits.connections_max`)"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nworlds_max = 1\n[gateway]\nworlds = ['x:a', 'y:a']\n",
            Conflict,
            3,
            1,
            &["opens 2 worlds of the class `a`", "raise `worlds_max`"],
        ),
        (
            "[[gateway.classes]]\nname = 'a'\nrecordings.enabled = true\n",
            Conflict,
            3,
            12,
            &["keeps no recordings", "gateway.recordings.enabled"],
        ),
        ("[gateway]\ndefault_world = ''\n", BadValue, 2, 1, &["is not a name"]),
        ("[gateway.clients]\nworld = 'hub'\n", BadReference, 2, 1, &["`hub`", "name it in `gateway.worlds`"]),
        (
            "[gateway]\nworlds = ['hub']\n[gateway.clients]\nextra = ['tcp://127.0.0.1:0/hbu']\n",
            BadReference,
            4,
            1,
            &["`hbu`", "did you mean `hub`?"],
        ),
        (
            "[server]\nonly = ['gatway']\n",
            BadValue,
            2,
            1,
            &["no service \"gatway\"", "allowed: gateway", "did you mean"],
        ),
        ("[server]\nshards = -1\n", BadValue, 2, 10, &["found -1", "from 0 to 64 (threads)", "default 0"]),
        ("[server]\nshards = 65\n", BadValue, 2, 10, &["found 65"]),
        ("[server]\nshards = 99999999999999999999\n", BadValue, 2, 10, &["99999999999999999999"]),
        ("[server]\nshards = '2'\n", BadValue, 2, 10, &["found the string \"2\""]),
        ("[server]\nshards = 2.5\n", BadValue, 2, 10, &["found the float"]),
        ("[server]\nshards = [2]\n", BadValue, 2, 10, &["found a list"]),
        ("[server]\nshards = 2020-01-01\n", BadValue, 2, 10, &["found a date"]),
        ("server = 1\n", BadValue, 1, 10, &["`server` is a section", "write [server]"]),
        ("[server]\nshards.x = 1\n", BadValue, 2, 1, &["found a table"]),
        ("[gateway]\ndev = 1\n", BadValue, 2, 7, &["true or false"]),
        (
            "[gateway.clients]\ntransport = 'wss'\n",
            BadValue,
            2,
            13,
            &["one of \"tcp\", \"ws\", \"kcp\"", "did you mean \"ws\"?"],
        ),
        (
            "[gateway.servers]\naddr = '127.0.0.1:7'\n[gateway.clients]\naddr = '127.0.0.1:7'\n",
            Conflict,
            4,
            1,
            &["`gateway.servers.addr` and `gateway.clients.addr`", "127.0.0.1:7"],
        ),
        ("[server]\nonly = ['ddc']\n", Conflict, 2, 1, &["`ddc`, which has no address", "set `ddc.addr`"]),
        ("[log]\nlevel = 'inof'\n", BadValue, 2, 1, &["\"inof\" is not a level", "allowed: error"]),
        ("[log]\nlevel = 'info,throng_net=loud'\n", BadValue, 2, 1, &["\"loud\" is not a level"]),
        (
            "[gateway]\ntrusted_proxies = ['10.0.0.0/33']\n",
            BadValue,
            2,
            1,
            &["`gateway.trusted_proxies`", "10.0.0.0/33"],
        ),
        ("[gateway.clients]\naddr = 'localhost'\n", BadValue, 2, 8, &["the port is missing"]),
        ("[gateway.clients]\naddr = '127.0.0.1:70000'\n", BadValue, 2, 8, &["`70000` is not a port"]),
        ("[gateway.clients]\naddr = '::1:80'\n", BadValue, 2, 8, &["brackets"]),
        ("[gateway.clients]\nextra = ['ws:/x']\n", BadValue, 2, 1, &["transport://host:port"]),
        ("[gateway.clients]\nextra = ['quic://:1']\n", BadValue, 2, 1, &["one of tcp, tls, ws, wss, kcp"]),
        ("[gateway.clients]\nextra = [1]\n", BadValue, 2, 9, &["the number 1 in the list"]),
        (
            "[gateway.clients]\norigins = ['play.example.com']\n",
            BadValue,
            2,
            1,
            &["https://play.example.com"],
        ),
        (
            "[gateway.clients]\ntls_cert = '/dev/null'\n",
            Conflict,
            2,
            1,
            &["without `gateway.clients.tls_key`"],
        ),
        ("[gateway.clients]\nstate_machine = 'nope.json'\n", BadReference, 2, 1, &["neither a file nor"]),
        ("[gateway.clients]\ntransport = 'kcp'\ntls = true\n", BadValue, 3, 1, &["KCP and ENet have no TLS"]),
        (
            "[gateway.clients]\naddr = ':12108'\n",
            UnsafeBind,
            2,
            1,
            &[":12108 is reachable", "gateway.clients.unsafe_binds"],
        ),
        ("[gateway.servers]\naddr = ':11288'\n", UnsafeBind, 2, 1, &["servers_bypass = false"]),
        ("[http]\naddr = ':80'\n", UnsafeBind, 2, 1, &["http.tokens_file", "metrics.open"]),
        ("[http]\naddr = 'no.such.host.invalid:1'\n", BadValue, 2, 1, &["cannot resolve"]),
        ("[gateway]\nchannels = 'hify'\n", BadReference, 2, 1, &["did you mean `hifi`"]),
        (
            "[gateway]\nschemas = ['missing.proto']\n",
            BadReference,
            2,
            1,
            &["missing.proto", "working directory"],
        ),
        ("[gateway]\nprofiles = { 'a.B' = 'x' }\n", BadValue, 2, 1, &["reflect, removable, unreal"]),
        ("[gateway]\nspatial_channel_id_first = 600000\n", Conflict, 2, 1, &["must be below"]),
        ("[gateway.limits]\noutbox_soft_bytes = 8000000\n", Conflict, 2, 1, &["must be below"]),
        ("[gateway.auth]\nkind = 'tokens'\n", Conflict, 2, 1, &["needs `gateway.auth.tokens_file`"]),
        ("[gateway.auth]\nkind = 'http'\n", Conflict, 2, 1, &["needs `gateway.auth.http_url`"]),
        ("[gateway.auth]\nkind = 'jwt'\n", Conflict, 2, 1, &["jwt_keys_file", "jwt_jwks_url"]),
        ("[gateway.auth]\njwt_algorithms = ['none']\n", BadValue, 2, 1, &["found \"none\"", "RS256"]),
        ("[gateway.auth]\nhttp_url = 'ftp://x/'\n", BadValue, 2, 1, &["https://host/path"]),
        ("[gateway.auth]\ntokens_file = 'gone'\n", BadReference, 2, 1, &["cannot be read"]),
        ("[log]\nlevel = 'throng=loud'\n", BadValue, 2, 1, &["log.level"]),
        ("[server\n", Syntax, 1, 8, &[]),
        ("[server]\nshards = 1\nshards = 2\n", Syntax, 3, 1, &["duplicate"]),
        ("[server]\nshards =\n", Syntax, 2, 9, &[]),
        ("[server]\ndata = \"unclosed\n", Syntax, 2, 17, &[]),
    ];
    for (text, kind, line, column, words) in table {
        let problem = only_problem(text);
        let rendered = problem.to_string();
        assert_eq!(problem.kind, *kind, "{text}\n{rendered}");
        let place = Origin::File { path: "throng.toml".into(), line: *line, column: *column };
        assert_eq!(problem.origin, place, "{text}\n{rendered}");
        for word in *words {
            assert!(rendered.contains(word), "{text}\n{rendered}\nlacks {word}");
        }
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let problems = load("[server]\nshrads = 1\n[gateway]\ndev = 3\n[http]\naddr = ':1'\n").unwrap_err();
    assert_eq!(problems.0.len(), 3);
    assert!(problems.to_string().ends_with("3 problems found"));
}

#[test]
fn a_problem_shows_the_line_and_underlines_the_place() {
    let rendered = only_problem("[server]\nshrads = 1\n").to_string();
    let expected = "error[THR-0103]: unknown key `server.shrads`\n  --> throng.toml:2:1\n  |\n2 | shrads = 1\n  | ^^^^^^\n";
    assert!(rendered.starts_with(expected), "{rendered}");
}

#[test]
fn layers_weigh_default_file_environment_flag() {
    let file = "[server]\nshards = 2\n";
    let env = [("THRONG_SERVER_SHARDS".to_owned(), "3".to_owned()), ("PATH".to_owned(), "/".to_owned())];
    let base = || Loader::new().text("t.toml", file);
    assert_eq!(Loader::new().load().unwrap().settings.server.shards, 0);
    assert_eq!(base().load().unwrap().settings.server.shards, 2);
    assert_eq!(base().env(env.clone()).load().unwrap().settings.server.shards, 3);
    let config = base().env(env).flag("--server.shards", "server.shards", "4").load().unwrap();
    assert_eq!(config.settings.server.shards, 4);
    assert_eq!(config.origin("server.shards").to_string(), "flag --server.shards");
    assert_eq!(config.origin("server.data"), &Origin::Default);
}

#[test]
fn environment_and_flag_problems_name_their_source() {
    let env = [("THRONG_SERVER_SHARDS".to_owned(), "many".to_owned())];
    let problems = Loader::new().env(env).flag("--gatway.dev", "gatway.dev", "true").load().unwrap_err();
    let text = problems.to_string();
    assert!(text.contains("environment variable THRONG_SERVER_SHARDS"), "{text}");
    assert!(text.contains("did you mean `gateway.dev`?"), "{text}");
}

#[test]
fn unknown_environment_variables_only_warn() {
    let env =
        [("THRONG_SERVER_SHRADS".to_owned(), "1".to_owned()), ("THRONG_PORT".to_owned(), "x".to_owned())];
    let config = Loader::new().env(env).load().unwrap();
    assert_eq!(config.warnings.len(), 2);
    assert!(config.warnings[0].contains("did you mean THRONG_SERVER_SHARDS?"), "{:?}", config.warnings);
}

#[test]
fn keys_of_enet_that_do_nothing_are_refused() {
    let told = |text: &str| -> Vec<String> {
        let problems = load(text).expect_err(text).0;
        problems.iter().map(|problem| problem.message.clone()).collect()
    };
    let enet = "[gateway.clients]\ntransport = 'enet'\n";
    for key in ["enet_plain = true", "enet_servers = ['127.0.0.1:1']", "enet_protocol = 7"] {
        let name = key.split(' ').next().unwrap_or_default();
        let without = told(&format!("{enet}{key}\n"));
        assert!(
            without[0].contains(&format!("`gateway.clients.{name}` does nothing without `enet_key_file`")),
            "{without:?}"
        );
    }
    let made = throng_net::development_certificate(&["localhost".to_owned()], Default::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [cert, key] = [("cert", &made.cert_pem), ("key", &made.key_pem)].map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    });
    let dtls = format!("enet_dtls_cert = '{cert}'\nenet_dtls_key = '{key}'\nenet_plain = true\n");
    load(&format!("{enet}{dtls}")).unwrap();
    let without_enet = told(&format!("[gateway.clients]\n{dtls}"));
    assert_eq!(without_enet.len(), 3, "{without_enet:?}");
    assert!(
        without_enet.iter().all(|message| message.contains("without a listener of ENet")),
        "{without_enet:?}"
    );
}

#[test]
fn a_missing_file_is_one_problem() {
    let problems = Loader::new().file("/no/such/throng.toml").load().unwrap_err();
    assert_eq!(problems.0[0].kind, ProblemKind::Unreadable);
}

#[test]
fn unsafe_binds_open_up_when_told_or_when_logins_are_checked() {
    let open = "[gateway.clients]\naddr = ':0'\nunsafe_binds = true\n[gateway.servers]\naddr = ':0'\nunsafe_binds = true\n";
    load(open).unwrap();
    let half = "[gateway.clients]\naddr = ':0'\n[gateway.servers]\naddr = ':0'\nunsafe_binds = true\n";
    let problems = load(half).unwrap_err();
    assert_eq!(problems.0.len(), 1, "each listener for itself: {problems:?}");
    let tokens = tempfile::NamedTempFile::new().unwrap();
    let checked = format!(
        "[gateway.auth]\nkind = 'tokens'\ntokens_file = '{}'\nservers_bypass = false\n\
         [gateway.clients]\naddr = ':0'\n[gateway.servers]\naddr = ':0'\n",
        tokens.path().display()
    );
    load(&checked).unwrap();
    let dev = format!("gateway.dev = true\n{checked}");
    assert_eq!(load(&dev).unwrap_err().0.len(), 2, "development mode stays on loopback");
}

#[test]
fn a_reload_tells_live_keys_from_those_that_wait() {
    let before = load("").unwrap();
    let changed = "[gateway.limits]\nban_s = 7\n[server]\nshards = 3\n";
    let (running, changes) = before.replaced_by(load(changed).unwrap());
    assert_eq!(changes.applied, ["gateway.limits.ban_s"]);
    assert_eq!(changes.need_restart, ["server.shards"]);
    // It still waits at the next reload, and no longer when the file is as the process is.
    let (running, changes) = running.replaced_by(load(changed).unwrap());
    assert_eq!((changes.applied.len(), changes.need_restart), (0, vec!["server.shards".to_owned()]));
    let (_, changes) = running.replaced_by(load("").unwrap());
    assert_eq!(changes.applied, ["gateway.limits.ban_s"]);
    assert!(changes.need_restart.is_empty(), "{:?}", changes.need_restart);
}
