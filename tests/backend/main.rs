//! Somebody else's oplog store, in `outside.rs`, under the suite that `leasehold::testkit` offers; and a broken one, which it finds out.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod outside;

use leasehold::testkit::{oplog, oplog_store_conformance};
use outside::Outside;

oplog_store_conformance!(Outside::new(true));

/// The suite is worth something: a store whose appends are not fenced fails it, at the rule that it breaks.
#[tokio::test]
async fn a_store_whose_appends_are_not_fenced_fails_the_suite() {
    let suite = |broken: bool| {
        tokio::spawn(async move {
            oplog::f3_an_append_by_anybody_but_the_recorded_writer_writes_nothing(&Outside::new(!broken)).await;
        })
    };
    assert!(suite(false).await.is_ok());
    assert!(suite(true).await.unwrap_err().is_panic());
    let held = tokio::spawn(async {
        oplog::a_held_append_is_fenced_once_the_next_owner_took_over(&Outside::new(false)).await
    });
    assert!(held.await.unwrap_err().is_panic());
}
