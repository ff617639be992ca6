//! A real etcd, with TLS and users.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::base64::encode;
use crate::client::Client;
use crate::error::EtcdError;
use crate::settings::Settings;

/// etcd on ports of this machine that were free, with its data in a folder of its own.
struct Etcd {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl Etcd {
    /// `None`, with a message, if it is not installed.
    fn start(name: &str) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("skipped: there is no etcd (Debian: etcd-server)");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("bm-etcd-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        certificates(&folder);
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (port, peer) = (free(), free());
        let (url, peer) = (format!("https://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder.join("data"));
        command.args([
            "--listen-client-urls",
            &url,
            "--advertise-client-urls",
            &url,
            "--listen-peer-urls",
            &peer,
        ]);
        command.args([
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("default={peer}"),
        ]);
        command
            .arg("--cert-file")
            .arg(folder.join("etcd.pem"))
            .arg("--key-file")
            .arg(folder.join("etcd.key"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Some(Self { child, folder, port })
    }

    fn settings(&self) -> Settings {
        // Nothing listens at the first, so the client uses the second.
        let endpoints = ["https://127.0.0.1:1".into(), format!("https://127.0.0.1:{}", self.port)];
        Settings {
            endpoints: endpoints.iter().map(|text| text.parse().unwrap()).collect(),
            ca: Some(self.folder.join("ca.pem")),
            ..Settings::default()
        }
    }

    async fn client(&self) -> Client {
        let (mut client, began) = (Client::new(self.settings()).unwrap(), Instant::now());
        while let Err(why) = client.range("/").await {
            assert!(began.elapsed() < Duration::from_secs(30), "{why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        client
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

fn certificates(folder: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    std::fs::write(folder.join("ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n").unwrap();
    for line in [
        format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=ca -days 2"),
        format!("req -x509 {key} -keyout other.key -out other.pem -subj /CN=other -days 2"),
        format!("req -new {key} -keyout etcd.key -out etcd.csr -subj /CN=etcd"),
        "x509 -req -in etcd.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out etcd.pem"
            .into(),
    ] {
        let output = Command::new("openssl").args(line.split(' ')).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn keys_leases_and_watches() {
    let Some(etcd) = Etcd::start("keys") else { return };
    run(async {
        let mut client = etcd.client().await;
        assert!(client.put_if("/a/x", b"one", None, 0).await.unwrap());
        assert!(!client.put_if("/a/x", b"two", None, 0).await.unwrap(), "it exists");
        client.put("/b/x", b"elsewhere", None).await.unwrap();
        let range = client.range("/a/").await.unwrap();
        let [entry] = &range.entries[..] else { panic!("{range:?}") };
        assert_eq!((entry.key.as_str(), &entry.value[..]), ("/a/x", &b"one"[..]));
        assert!(client.put_if("/a/x", b"two", None, entry.revision).await.unwrap());
        // A key ends with its lease, and the watch reports it.
        let lease = client.grant(30).await.unwrap();
        client.put("/a/y", &[0, 255, 10], Some(lease)).await.unwrap();
        assert!(client.keep_alive(lease).await.unwrap());
        let range = client.range("/a/").await.unwrap();
        assert_eq!((range.entries.len(), &range.entries[1].value[..]), (2, &[0, 255, 10][..]));
        let mut watch = client.watch("/a/", range.revision + 1).await.unwrap();
        client.put("/b/x", b"not watched", None).await.unwrap();
        let nothing = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await;
        assert!(nothing.is_err());
        client.revoke(lease).await.unwrap();
        watch.changed().await.unwrap();
        assert_eq!(client.range("/a/").await.unwrap().entries.len(), 1);
        assert!(!client.keep_alive(lease).await.unwrap(), "it is over");
        let refused = client.put("/a/y", b"", Some(lease)).await.unwrap_err().to_string();
        assert!(refused.contains("lease not found"), "{refused}");
    });
}

#[test]
fn users_and_certificates() {
    let Some(etcd) = Etcd::start("users") else { return };
    run(async {
        let mut root = etcd.client().await;
        for (path, body) in [
            ("/v3/auth/user/add", json!({ "name": "root", "password": "secret" })),
            ("/v3/auth/role/add", json!({ "name": "root" })),
            ("/v3/auth/user/grant", json!({ "user": "root", "role": "root" })),
            ("/v3/auth/user/add", json!({ "name": "node", "password": "pass word" })),
            ("/v3/auth/role/add", json!({ "name": "nodes" })),
            ("/v3/auth/user/grant", json!({ "user": "node", "role": "nodes" })),
            (
                "/v3/auth/role/grant",
                json!({ "name": "nodes", "perm": { "permType": "READWRITE", "key": encode(b"/n/"), "range_end": encode(b"/n0") } }),
            ),
            ("/v3/auth/enable", json!({})),
        ] {
            root.ask(path, body).await.unwrap();
        }
        let refused = root.range("/n/").await.unwrap_err();
        assert!(matches!(refused, EtcdError::Refused { .. }), "{refused}");
        let password_file = etcd.folder.join("password");
        std::fs::write(&password_file, "pass word\n").unwrap();
        let settings = Settings {
            user: Some("node".into()),
            password_file: Some(password_file.clone()),
            ..etcd.settings()
        };
        let mut node = Client::new(settings.clone()).unwrap();
        node.put("/n/a", b"1", None).await.unwrap();
        // A token that etcd does not know (any more) is replaced.
        node.set_token("unknown");
        assert_eq!(node.range("/n/").await.unwrap().entries.len(), 1);
        let denied = node.put("/m/a", b"1", None).await.unwrap_err().to_string();
        assert!(denied.contains("permission denied"), "{denied}");
        std::fs::write(&password_file, "wrong").unwrap();
        let wrong = Client::new(settings.clone()).unwrap().range("/n/").await.unwrap_err().to_string();
        assert!(wrong.contains("authentication failed"), "{wrong}");
        // Of a CA that we do not trust.
        let other = Settings { ca: Some(etcd.folder.join("other.pem")), ..settings.clone() };
        let untrusted = Client::new(other).unwrap().range("/n/").await.unwrap_err();
        assert!(matches!(untrusted, EtcdError::Unreachable { .. }), "{untrusted}");
        let missing = Settings { ca: Some("/nonexistent/ca.pem".into()), ..settings };
        let missing = Client::new(missing).err().map(|why| why.to_string());
        assert!(
            missing.as_ref().is_some_and(|why| why.starts_with("`ca` /nonexistent/ca.pem: ")),
            "{missing:?}"
        );
    });
}
