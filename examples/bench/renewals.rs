//! Renewals: 1,000 executors that each renew again as soon as they were answered, over 64 connections; 1,024 shards.

use crate::cluster::{Manager, Member, folder, lease, populate};
use crate::figure::{Measured, Result};
use crate::load::{Serving, clients, listener, rate};
use crate::rounds::{in_turns, median};
use crate::state_cas::{Form, StateCas};
use leasehold_model::Address;
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
const SPAN: Duration = Duration::from_millis(500);
const SETTLE: Duration = Duration::from_millis(500);

/// Executors that renew with one server.
struct Fleet {
    members: Arc<Vec<Member>>,
    clients: Arc<Vec<BareClient>>,
}

impl Fleet {
    async fn connect(members: &Arc<Vec<Member>>, address: &Address) -> Result<Self> {
        Ok(Self { members: Arc::clone(members), clients: Arc::new(clients(CONNECTIONS, address).await?) })
    }

    /// Renewals per second. Each executor waits for its answer before it renews again.
    async fn rate(&self, span: Duration) -> Result<f64> {
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
    async fn renewals_within(&self, span: Duration) -> Result<f64> {
        let heard = || self.members.iter().map(Member::heard).sum::<u64>();
        let before = heard();
        self.rate(span).await?;
        Ok((heard() - before) as f64)
    }
}

/// The manager with its executors.
struct Subject {
    manager: Manager,
    members: Arc<Vec<Member>>,
    fleet: Fleet,
    folder: TempDir,
}

impl Subject {
    async fn start() -> Result<Self> {
        let folder = folder()?;
        let manager = Manager::start(&folder.path().join("manager.db"), SHARDS, SETTLE).await?;
        let members = Arc::new(populate(&manager, EXECUTORS).await?);
        let fleet = Fleet::connect(&members, &manager.address).await?;
        Ok(Self { manager, members, fleet, folder })
    }

    /// The other manager, with executors of its own that are as these.
    async fn state_cas(&self, form: Form) -> Result<(Arc<StateCas>, Serving, Fleet)> {
        let published = self.manager.handle.published();
        let state = Arc::clone(&published.state);
        let path = self.folder.path().join(format!("state-cas-{form:?}.db"));
        let api = StateCas::open(&path, state, published.table(), (&self.members, lease()?, form)).await?;
        let (api, (listener, address)) = (Arc::new(api), listener().await?);
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
    let subject = Subject::start().await?;
    let (json, json_server, baseline) = subject.state_cas(Form::Json).await?;
    let (packed, packed_server, tighter) = subject.state_cas(Form::Packed).await?;
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
    drop(subject.fleet);
    subject.manager.stop().await?;
    Ok(measured)
}

/// `renewal_vs_bare_tonic`.
pub async fn against_bare_tonic() -> Result<Measured> {
    let subject = Subject::start().await?;
    let (server, baseline) = subject.bare().await?;
    let measured =
        in_turns(ROUNDS, async || subject.fleet.rate(SPAN).await, async || bare_rate(&baseline).await).await?;
    drop(baseline);
    server.stop().await?;
    drop(subject.fleet);
    subject.manager.stop().await?;
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
    let subject = Subject::start().await?;
    let (api, server, baseline) = subject.state_cas(Form::Packed).await?;
    let before = (subject.manager.counters.read(), api.writes());
    // Counted, not taken from the rate: whoever waits when the time is over is answered after it.
    let renewals = subject.fleet.renewals_within(SPAN).await?;
    let others = baseline.renewals_within(SPAN).await?;
    let written = subject.manager.counters.read().since(before.0).commits;
    let by_others = api.writes() - before.1;
    drop(baseline);
    server.stop().await?;
    drop(subject.fleet);
    subject.manager.stop().await?;
    Ok(Measured { value: written as f64 / renewals, baseline: by_others as f64 / others })
}
