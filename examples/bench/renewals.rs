//! Renewals: 1,000 executors that each renew again as soon as they were answered, over 64 connections; 1,024 shards.

use crate::cluster::{Manager, Member, folder, lease, populate};
use crate::figure::{Measured, Result};
use crate::load::{Serving, clients, listener, rate};
use crate::rounds::{in_turns, median};
use crate::state_cas::{Form, Place, StateCas};
use leasehold_model::Address;
use leasehold_persistence::ClusterStore;
use leasehold_persistence::cluster::Counters;
use leasehold_rpc::api::ManagerApi;
use leasehold_rpc::baseline::{BareClient, BareServer};
use leasehold_rpc::server::{Limits, serve_manager};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const EXECUTORS: usize = 1000;
const SHARDS: u32 = 1024;
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 11;
const SETTLE: Duration = Duration::from_millis(500);

/// Executors that renew with one server.
pub struct Fleet {
    members: Arc<Vec<Member>>,
    clients: Arc<Vec<BareClient>>,
}

impl Fleet {
    async fn connect(members: &Arc<Vec<Member>>, address: &Address) -> Result<Self> {
        Ok(Self { members: Arc::clone(members), clients: Arc::new(clients(CONNECTIONS, address).await?) })
    }

    /// Renewals per second. Each executor waits for its answer before it renews again.
    pub async fn rate(&self, span: Duration) -> Result<f64> {
        let (members, clients) = (Arc::clone(&self.members), Arc::clone(&self.clients));
        rate(self.members.len(), span, move |executor| {
            let (members, clients) = (Arc::clone(&members), Arc::clone(&clients));
            async move {
                let member = &members[executor];
                clients[executor % CONNECTIONS].renew(&member.renewal()).await?;
                member.granted();
                Ok(())
            }
        })
        .await
    }
}

impl Fleet {
    /// How many renewals were answered in a round of so long.
    pub async fn renewals_within(&self, span: Duration) -> Result<f64> {
        let heard = || self.members.iter().map(Member::heard).sum::<u64>();
        let before = heard();
        self.rate(span).await?;
        Ok((heard() - before) as f64)
    }
}

/// The manager with its executors.
pub struct Subject {
    manager: Manager,
    members: Arc<Vec<Member>>,
    /// They renew.
    pub fleet: Fleet,
}

/// How long a round is.
pub const SPAN: Duration = Duration::from_millis(500);

impl Subject {
    /// On SQLite, in `folder`.
    async fn start(folder: &TempDir) -> Result<Self> {
        Self::of(Manager::start(&folder.path().join("manager.db"), SHARDS, SETTLE).await?).await
    }

    /// On any store, which counts in `counters`.
    pub async fn on(store: Arc<dyn ClusterStore>, counters: Arc<Counters>) -> Result<Self> {
        Self::of(Manager::on(store, counters, (SHARDS, SETTLE)).await?).await
    }

    async fn of(manager: Manager) -> Result<Self> {
        let members = Arc::new(populate(&manager, EXECUTORS).await?);
        let fleet = Fleet::connect(&members, &manager.address).await?;
        Ok(Self { manager, members, fleet })
    }

    /// Ends it.
    pub async fn stop(self) -> Result<()> {
        drop(self.fleet);
        self.manager.stop().await
    }

    /// The other manager, with executors of its own that are as these.
    pub async fn state_cas(&self, place: Place, form: Form) -> Result<(Arc<StateCas>, Serving, Fleet)> {
        let published = self.manager.handle.published();
        let state = Arc::clone(&published.state);
        let api = Arc::new(StateCas::new(place, state, published.table(), (&self.members, lease()?, form)));
        let (listener, address) = listener().await?;
        let served: Arc<dyn ManagerApi> = Arc::clone(&api) as Arc<dyn ManagerApi>;
        let server = Serving::start(|stop| serve_manager(listener, served, Limits::default(), stop));
        let copies = self.members.iter().map(|member| {
            let renewal = member.renewal();
            Member::new(renewal.executor, renewal.lease_key, member.grant.clone())
        });
        let fleet = Fleet::connect(&Arc::new(copies.collect()), &address).await?;
        Ok((api, server, fleet))
    }
}

impl Subject {
    /// The bare service, asked by the same executors.
    async fn bare(&self) -> Result<(Serving, Fleet)> {
        let (listener, address) = listener().await?;
        let bare = BareServer::new(&self.members[0].grant, &self.manager.handle.published().table());
        let server = Serving::start(|stop| bare.serve(listener, stop));
        Ok((server, Fleet::connect(&self.members, &address).await?))
    }
}

/// `renewal_vs_state_cas_sqlite`. Beside it stands on standard error what else ran in the same rounds.
pub async fn against_state_cas() -> Result<Measured> {
    let folder = folder()?;
    let place = async |name: &str| Place::sqlite(&folder.path().join(name)).await;
    let subject = Subject::start(&folder).await?;
    let (json, json_server, baseline) = subject.state_cas(place("json.db").await?, Form::Json).await?;
    let (packed, packed_server, tighter) = subject.state_cas(place("packed.db").await?, Form::Packed).await?;
    let (bare_server, bare) = subject.bare().await?;
    let (mut packed_rates, mut bare_rates) = (Vec::new(), Vec::new());
    let others = async || {
        packed_rates.push(tighter.rate(SPAN).await?);
        bare_rates.push(bare_rate(&bare).await?);
        baseline.rate(SPAN).await
    };
    let measured = in_turns(ROUNDS, async || subject.fleet.rate(SPAN).await, others).await?;
    eprintln!("  baseline: {} bytes of JSON for each renewal", json.size().await);
    let rate = median(packed_rates);
    let times = measured.value / rate;
    eprintln!("  {} packed bytes for each renewal: {rate:.0} renewals/s, a ratio of {times:.1}", packed.size().await);
    eprintln!("  a bare tonic service, with nothing behind it: {:.0} renewals/s", median(bare_rates));
    drop((baseline, tighter, bare));
    for server in [json_server, packed_server, bare_server] {
        server.stop().await?;
    }
    subject.stop().await?;
    Ok(measured)
}

/// `renewal_vs_bare_tonic`.
pub async fn against_bare_tonic() -> Result<Measured> {
    let folder = folder()?;
    let subject = Subject::start(&folder).await?;
    let (server, baseline) = subject.bare().await?;
    let measured =
        in_turns(ROUNDS, async || subject.fleet.rate(SPAN).await, async || bare_rate(&baseline).await).await?;
    drop(baseline);
    server.stop().await?;
    subject.stop().await?;
    Ok(measured)
}

/// The bare server grants nothing, so what its callers heard is taken back.
async fn bare_rate(fleet: &Fleet) -> Result<f64> {
    let heard: Vec<_> = fleet.members.iter().map(Member::heard).collect();
    let rate = fleet.rate(SPAN).await;
    fleet.members.iter().zip(heard).for_each(|(member, heard)| member.hear(heard));
    rate
}

/// `durable_writes_per_renewal`: the store's own count, against one for each renewal of the manager that writes its state.
pub async fn durable_writes() -> Result<Measured> {
    let folder = folder()?;
    let subject = Subject::start(&folder).await?;
    let place = Place::sqlite(&folder.path().join("packed.db")).await?;
    let (api, server, baseline) = subject.state_cas(place, Form::Packed).await?;
    let before = (subject.manager.counters.read(), api.writes());
    // Counted, not taken from the rate: whoever waits when the time is over is answered after it.
    let renewals = subject.fleet.renewals_within(SPAN).await?;
    let others = baseline.renewals_within(SPAN).await?;
    let written = subject.manager.counters.read().since(before.0).commits;
    let by_others = api.writes() - before.1;
    drop(baseline);
    server.stop().await?;
    subject.stop().await?;
    Ok(Measured { value: written as f64 / renewals, baseline: by_others as f64 / others })
}
