use super::*;

#[test]
fn a_declaration_becomes_comments_and_values() {
    let source = r#"
        settings! {
            /// Limits of the
            /// slow path.
            #[table("[slow_path]", "docs/guide.md")]
            pub struct SlowPath {
                /// Frames that may wait.
                #[setting(ring = 4_096, power(64..=1 << 20), Workers)]
                pub ring: u32,
                /// Not a key.
                pub line: usize,
                #[setting(wait = "on", Choice(&ON_OFF), Live)]
                pub wait: bool,
            }
        }
        settings! {
            /// One for each.
            #[table("[[app]]")]
            impl app::App {
                /// Its name.
                #[by_hand(name = "guard")]
                name,
                #[by_hand(config = { minimum = 255 })]
                argument,
                #[setting(core = "workers", word_or_number(0..=9), Daemon)]
                limits.core,
            }
        }
        settings! {
            /// Links.
            #[table("[[link]]")]
            by_hand {
                /// From where.
                from = ["a", 1],
            }
        }
    "#;
    let mut text = String::new();
    for table in tables(source).unwrap() {
        table.write(&mut text);
    }
    let expected = r#"
[slow_path]
# Limits of the slow path. See docs/guide.md.
#
# Frames that may wait. A power of two, from 64 to 1048576. A change restarts the workers.
ring = 4096
wait = "on"

# One for each.
# [[app]]
# Its name.
# name = "guard"
# config = { minimum = 255 }
# From 0 to 9. A change needs a restart of the daemon.
# core = "workers"

# Links.
# [[link]]
# From where.
# from = ["a", 1]
"#;
    assert_eq!(text, expected);
}

#[test]
fn says_what_it_cannot_read() {
    let declaration = |setting: &str| {
        format!("settings! {{ #[table(\"[a]\")] pub struct A {{ #[setting({setting})] pub a: u32, }} }}")
    };
    assert!(tables(&declaration("a = 1, number(0..=9), Live")).is_ok());
    for setting in ["a = DEFAULT, number(0..=9), Live", "a = 1, number(0..=MOST), Live", "a = 1"] {
        assert!(tables(&declaration(setting)).is_err(), "{setting}");
    }
}

#[test]
fn long_comments_are_wrapped() {
    let mut text = String::new();
    comment(&"word ".repeat(50), &mut text);
    assert!(text.lines().count() == 3 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
}
