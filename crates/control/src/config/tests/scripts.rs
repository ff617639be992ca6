//! Hooks, apps and links.

use super::*;

#[test]
fn reads_hooks() {
    let text = "[[hook]]\nfile = 'acl.lua'\nstage = 'ingress'\n[[hook]]\nfile = '/etc/x.lua'\nname = 'y'\n\
                budget = 0\nbudget_ms = 20\nbudget_percent = 9\non_failure = 'linux'\nargs = { rate = 10, deep = { list = ['a', 1.5, true] } }\n";
    let config = Config::parse(Path::new("/etc/brickmoon/b.toml"), text).unwrap();
    let [acl, other] = &config.hooks[..] else { panic!("{:?}", config.hooks) };
    assert_eq!(
        (acl.name.as_str(), acl.file.to_str(), acl.stage),
        ("acl", Some("/etc/brickmoon/acl.lua"), Some(HookStage::Ingress))
    );
    assert_eq!((acl.budget, acl.patience, acl.line), (5000, Duration::from_secs(1), 1));
    assert_eq!((other.name.as_str(), other.file.to_str(), other.budget), ("y", Some("/etc/x.lua"), 0));
    assert_eq!((acl.budget_percent, acl.on_failure), (25, None));
    assert_eq!((other.budget_percent, other.on_failure), (9, Some(HookFailure::Linux)));
    assert_eq!(other.arguments.to_string(), r#"{"deep":{"list":["a",1.5,true]},"rate":10}"#);
    let changed = Config::default().diff(&config);
    assert!(changed.iter().all(|changed| changed.effect == Effect::Live), "{changed:?}");
}

#[test]
fn reports_errors_in_hooks() {
    assert_eq!(
        refused("\n[[hook]]\n"),
        "test.toml, line 2: `file` in [[hook]] is missing: write file = \"acl.lua\""
    );
    let twice = refused("[[hook]]\nfile = 'a.lua'\n[[hook]]\nfile = 'b/a.lua'\n");
    assert_eq!(twice, "test.toml, line 3: duplicate hook \"a\", first on line 1: remove one of the two");
    let stage = refused("[[hook]]\nfile = 'a.lua'\nstage = 'ingres'\n");
    assert!(
        stage.starts_with("test.toml, line 3: `stage` in [[hook]] is \"ingres\", expected \"all\", "),
        "{stage}"
    );
    assert!(refused("[[hook]]\nfile = 'a.lua'\nargs = 3\n").contains("args = { limit = 1000 }"));
}

#[test]
fn reads_the_lua_path() {
    let parse = |text: &str| Config::parse(Path::new("/etc/brickmoon/b.toml"), text).unwrap();
    let config = parse("\n[lua]\npath = ['lua', '/usr/share/nf']\n");
    let path = vec!["/etc/brickmoon/lua".into(), "/usr/share/nf".into()];
    assert_eq!(config.lua, Lua { path, line: 3, hung_calls: HungCalls::Interrupt });
    assert_eq!(parse("[lua]\nhung_calls = 'restart'\n").lua.hung_calls, HungCalls::Restart);
    let effect = |apps: &str| {
        let before = parse(apps);
        let after = parse(&format!("[lua]\npath = ['lua']\n{apps}"));
        before.diff(&after).into_iter().map(|changed| (changed.key, changed.effect)).collect::<Vec<_>>()
    };
    assert_eq!(effect("[[hook]]\nfile = 'a.lua'"), [("lua.path".into(), Effect::Live)]);
    assert_eq!(effect("[[app]]\nname = 'a'\nmodule = 'a.lua'"), [("lua.path".into(), Effect::Workers)]);
    assert_eq!(
        message_for("lua", "path = 'lua'"),
        "`path` in [lua] must be a list of strings, not the string \"lua\": write path = [\"lua\", \"/usr/share/lua/site\"]"
    );
    assert!(message_for("lua", "path = ['a', 3]").contains("not the number 3"));
}

#[test]
fn reads_apps_and_links() {
    let text = "
        [[port]]
        device = 'eth0'
        [[port]]
        device = 'tap:vm0'
        [[app]]
        name = 'guard'
        module = 'guard.lua'
        config = { minimum = 255, names = ['a', 'b'] }
        [[app]]
        name = 'tee'
        module = 'apps.basic.basic_apps'
        class = 'Tee'
        [[app]]
        name = 'dump'
        module = 'pcap:,out.pcap'
        [[link]]
        from = 'eth0.output'
        to = 'guard.input'
        [[link]]
        from = 'guard.output'
        to = 'bm-vm0.guard'";
    let config = Config::parse(Path::new("/etc/b/x.toml"), text).unwrap();
    let app = |name: &str, module, class: Option<&str>, argument, line| app::App {
        name: name.into(),
        module,
        class: class.map(String::from),
        argument,
        core: None,
        line,
    };
    let argument = serde_json::json!({ "minimum": 255, "names": ["a", "b"] });
    let null = serde_json::Value::Null;
    assert_eq!(
        config.apps,
        [
            app("guard", app::Module::File("/etc/b/guard.lua".into()), None, argument, 6),
            app("tee", app::Module::Lua("apps.basic.basic_apps".into()), Some("Tee"), null.clone(), 10),
            app("dump", app::Module::Rust("pcap:,out.pcap".into()), None, null, 14),
        ]
    );
    let ends: Vec<_> =
        config.links.iter().map(|link| (&*link.from.0, &*link.to.0, &*link.to.1, link.line)).collect();
    assert_eq!(ends, [("eth0", "guard", "input", 17), ("guard", "bm-vm0", "guard", 20)]);
    assert_eq!(config.check_links(), []);
    let effects = |other: &str| {
        let other = Config::parse(Path::new("/etc/b/x.toml"), other).unwrap();
        config.diff(&other).into_iter().map(|changed| (changed.key, changed.effect)).collect::<Vec<_>>()
    };
    assert_eq!(effects(&format!("\n{text}")), [], "lines are only for messages");
    assert_eq!(effects(&text.replace("255", "254")), [("app.guard".into(), Effect::Live)]);
    assert_eq!(effects(&text.replace("guard.input", "guard.in")), [("link".into(), Effect::Workers)]);
    let moved = text.replace("class = 'Tee'", "class = 'Tee'\ncore = 3");
    assert_eq!(effects(&moved), [("app.tee.core".into(), Effect::Workers)]);
    assert_eq!(Config::parse(Path::new("x.toml"), &moved).unwrap().apps[1].core, Some(3));
    let apps = effects("[[port]]\ndevice = 'eth0'\n[[port]]\ndevice = 'tap:vm0'");
    assert!(apps.contains(&("app".into(), Effect::Workers)), "the last app goes: {apps:?}");
}

#[test]
fn reports_errors_in_apps_and_links() {
    let message = |text: &str| Config::parse(Path::new("x.toml"), text).unwrap_err().to_string();
    let app = "[[app]]\nname = 'a'\nmodule = 'a.lua'\n";
    for (text, why) in [
        (
            "[app]\nname = 'a'".into(),
            "x.toml, line 1: `app` in this file must be an array of tables, not a table: write [[app]] with name = \"guard\" and module = \"guard.lua\" below it",
        ),
        (
            "[[app]]\nmodule = 'a.lua'".into(),
            "x.toml, line 1: `name` in [[app]] is missing: write name = \"guard\"",
        ),
        (
            "[[app]]\nname = 'a'".into(),
            "x.toml, line 1: `module` in [[app]] is missing: write module = \"guard.lua\"",
        ),
        (
            "[[app]]\nname = 'a b'\nmodule = 'a.lua'".into(),
            "x.toml, line 2: `name` in [[app]] is \"a b\": use 1 to 24 letters, digits, `-` or `_`",
        ),
        (
            "[[app]]\nname = 'router'\nmodule = 'a.lua'".into(),
            "x.toml, line 2: `name` in [[app]] is \"router\": this name is reserved: use another",
        ),
        (
            "[[app]]\nname = 'a'\nmodule = 'xpd:eth0'".into(),
            "x.toml, line 3: unknown kind of device `xpd`: did you mean `xdp:`?",
        ),
        (
            format!("{app}{app}"),
            "x.toml, line 4: duplicate app \"a\", first on line 1: remove one of the two",
        ),
        (format!("{app}core = -1"), "x.toml, line 4: `core` in [[app]] is -1: must be from 0 to 4095"),
        (format!("{app}modul = 1"), "x.toml, line 4: unknown key `modul` in [[app]]: did you mean `module`?"),
        (
            "[[link]]\nfrom = 'a'\nto = 'b.i'".into(),
            "x.toml, line 2: `from` in [[link]] is \"a\": must be the name of an app, a dot, and the name of the link in the app",
        ),
        (
            "[[link]]\nfrom = 'a.o'".into(),
            "x.toml, line 1: `to` in [[link]] is missing: write to = \"guard.input\"",
        ),
    ] {
        assert_eq!(message(&text), why);
    }
}
