//! What the stories stand on: a sandbox with a fresh database, the binary under test, an endpoint that answers on
//! cue, and a checker that believes nobody but the endpoint's ledger and the rows. No story and no promise is here.

pub mod browser;
pub mod checker;
pub mod database;
pub mod document;
pub mod endpoint;
pub mod gate;
pub mod process;
pub mod sandbox;
pub mod server;
pub mod sink;
pub mod terminal;

pub use checker::{check, finish, unknown_at_most};
pub use database::{Database, Engine};
pub use endpoint::{Cue, Endpoint, FullHouse};
pub use gate::Gate;
pub use process::{Process, wait_until};
pub use sandbox::Sandbox;
pub use sink::Sink;

/// Each story becomes two tests, `sqlite::story` and `mysql::story`; those on MySQL are ignored unless asked
/// for with `--include-ignored`, since they need a server: `BATCH_SEND_TEST_MYSQL=mysql://root@127.0.0.1:3306/test`.
/// Behind `mysql alone:` stand the stories of what exists only there.
macro_rules! on_each_database {
    ($($story:ident),* $(,)? $(; mysql alone: $($only:ident),* $(,)?)?) => {
        mod sqlite {
            $(#[test] fn $story() { super::$story(crate::support::Sandbox::new(crate::support::Engine::Sqlite)); })*
        }
        on_mysql!($($story,)* $($($only),*)?);
    };
}

/// Stories of one database alone: what they hold or break exists only there.
macro_rules! on_mysql {
    ($($story:ident),* $(,)?) => {
        mod mysql {
            $(#[test] #[ignore = "needs a server: BATCH_SEND_TEST_MYSQL"]
            fn $story() { super::$story(crate::support::Sandbox::new(crate::support::Engine::MySql)); })*
        }
    };
}
