//! A game server that lets its players find each other: every player joins an open `2v2` room; when
//! a room is full, the match begins. The matcher is `throng up --only matcher`.
//!
//!     cargo run --example matchmaking -- 127.0.0.1:11290 alice bob carol dave

#![allow(clippy::print_stdout, reason = "this is what the example is for")]

use std::collections::BTreeSet;

use throng_client::{Matcher, MatcherConfig, Notification, Role};

#[tokio::main]
#[allow(dead_code, reason = "a test calls `gather` itself")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or("127.0.0.1:11290".into());
    let players: Vec<String> = args.collect();
    gather(&address, &players, |line| println!("{line}")).await
}

pub(crate) async fn gather(
    address: &str,
    players: &[String],
    mut print: impl FnMut(String),
) -> Result<(), Box<dyn std::error::Error>> {
    // One session for all players of this server. It reconnects by itself, and a call that is
    // repeated has one effect.
    let (matcher, mut notices) = Matcher::connect(address.parse()?, MatcherConfig::new("game_1")).await?;
    for (index, player) in players.iter().enumerate() {
        let role = Role::new(player).float("level", 10.0 + index as f64).tag("ready");
        let room = matcher.join_random_room(&role, "2v2").await?;
        print(format!("{player} is number {} in {}", room.members, room.mode));
    }
    // The matcher tells every server once, with the names of its players.
    let mut waiting: BTreeSet<String> = players.iter().cloned().collect();
    while !waiting.is_empty() {
        match notices.next().await.ok_or("the session is over")? {
            Notification::Notice(notice) => {
                let Some(room) = notice.room().filter(|room| room.is_full) else { continue };
                if notice.name() == "rolesJoinRoomMsg" {
                    let names: Vec<&str> = room.roles.iter().map(|role| role.id.as_str()).collect();
                    print(format!("match: {}", names.join(", ")));
                    waiting.retain(|player| !names.contains(&player.as_str()));
                }
            }
            // This server was away, or slower than the matcher may wait for: what is missing can be
            // fetched.
            Notification::Gap => {
                for room in matcher.mine().await?.rooms.iter().filter(|room| room.is_full) {
                    waiting.retain(|player| !room.roles.iter().any(|role| role.id == *player));
                }
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}
