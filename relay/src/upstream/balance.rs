//! Which endpoint comes next, of several that are equally good.

use std::{
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use hrw_hash::{HrwNode, HrwNodes};

use super::endpoint::Endpoint;
use crate::{pair::Peer, plan::Balance};

/// Chooses endpoints.
#[derive(Debug)]
pub(super) struct Balancer {
    balance: Balance,
    /// Held while turns are counted.
    turns: Mutex<()>,
}

impl Balancer {
    pub(super) fn new(balance: Balance) -> Self {
        Self {
            balance,
            turns: Mutex::new(()),
        }
    }

    /// One of `among` for `client`; none where there is none.
    pub(super) fn choose<'a>(
        &self,
        among: &[&'a Arc<Endpoint>],
        client: &Peer,
    ) -> Option<&'a Arc<Endpoint>> {
        match (among, self.balance) {
            ([] | [_], _) => among.first().copied(),
            (_, Balance::RoundRobin) => self.in_turn(among),
            (_, Balance::LeastConnections) => self.least(among),
            (_, Balance::RandomTwo) => two(among),
            (_, Balance::SourceHash) => by_source(among, client),
        }
    }

    /// Smooth weighted round robin: each earns its weight, the richest is taken and pays for all.
    fn in_turn<'a>(&self, among: &[&'a Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
        let _counting = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = 0;
        for one in among {
            let weight = i64::from(one.place.weight);
            one.turn.fetch_add(weight, Ordering::Relaxed);
            total += weight;
        }
        let turn = |one: &Arc<Endpoint>| one.turn.load(Ordering::Relaxed);
        // The first of equals, where `max_by_key` would take the last.
        let chosen = among.iter().copied().rev().max_by_key(|one| turn(one))?;
        chosen.turn.fetch_sub(total, Ordering::Relaxed);
        Some(chosen)
    }

    fn least<'a>(&self, among: &[&'a Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
        let loads = Vec::from_iter(among.iter().map(|one| Load::of(one)));
        let least = loads.iter().min()?;
        let idle = among.iter().zip(&loads);
        let idle = Vec::from_iter(idle.filter(|(_, load)| *load == least).map(|(one, _)| *one));
        self.in_turn(&idle)
    }
}

/// Connections for each unit of weight, the one to come included.
#[derive(Clone, Copy, Debug)]
struct Load {
    connections: u128,
    weight: u128,
}

impl Load {
    fn of(endpoint: &Endpoint) -> Self {
        Self {
            connections: endpoint.live() as u128 + 1,
            weight: endpoint.place.weight.into(),
        }
    }
}

impl Ord for Load {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.connections * other.weight).cmp(&(other.connections * self.weight))
    }
}

impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Load {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Load {}

/// Of two different ones, drawn by weight, the one with less load.
fn two<'a>(among: &[&'a Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
    let one = draw(among)?;
    let others = among.iter().copied();
    let others = Vec::from_iter(others.filter(|other| !Arc::ptr_eq(one, other)));
    let other = draw(&others)?;
    Some(match Load::of(other) < Load::of(one) {
        true => other,
        false => one,
    })
}

fn draw<'a>(among: &[&'a Arc<Endpoint>]) -> Option<&'a Arc<Endpoint>> {
    let weights = among.iter().map(|one| u64::from(one.place.weight));
    let total = weights.sum::<u64>();
    let mut at = fastrand::u64(..total.max(1));
    among.iter().copied().find(|one| {
        let weight = u64::from(one.place.weight);
        let found = at < weight;
        at = at.saturating_sub(weight);
        found
    })
}

/// Rendezvous hashing: every endpoint has a score for every client, so that the clients of one that fails are shared
/// out, and nobody else's connections move.
fn by_source<'a>(among: &[&'a Arc<Endpoint>], client: &Peer) -> Option<&'a Arc<Endpoint>> {
    let nodes = HrwNodes::new(among.iter().copied().map(Node));
    let chosen = match client {
        Peer::Ip(from) => nodes.sorted(&from.ip().to_canonical().to_string()).next(),
        // Nothing tells them apart.
        Peer::Unix(path) => nodes.sorted(&path.display().to_string()).next(),
    };
    chosen.map(|node| node.0)
}

/// Known by its address as text, which is the same in every process.
struct Node<'a>(&'a Arc<Endpoint>);

impl Hash for Node<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.place.at.to_string().hash(state);
    }
}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.place.at == other.0.place.at
    }
}

impl Eq for Node<'_> {}

impl HrwNode for Node<'_> {
    fn capacity(&self) -> usize {
        self.0.place.weight as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::endpoint::Place;
    use super::*;

    fn endpoints(weights: &[u32]) -> Vec<Arc<Endpoint>> {
        let endpoint = |(port, weight): (u16, &u32)| {
            let at = Peer::Ip(([127, 0, 0, 1], port).into());
            let place = Place {
                host: at.to_string(),
                at,
                weight: *weight,
                rank: 0,
            };
            Arc::new(Endpoint::new(place, Arc::default()))
        };
        (1..).zip(weights).map(endpoint).collect()
    }

    fn client(number: u32) -> Peer {
        Peer::Ip((std::net::Ipv4Addr::from_bits(number), 1).into())
    }

    fn port(endpoint: &Endpoint) -> u16 {
        match &endpoint.place.at {
            Peer::Ip(at) => at.port(),
            Peer::Unix(_) => 0,
        }
    }

    fn counts(balance: Balance, endpoints: &[Arc<Endpoint>], rounds: u32) -> HashMap<u16, u32> {
        let balancer = Balancer::new(balance);
        let among = Vec::from_iter(endpoints);
        let mut counts = HashMap::new();
        for number in 0..rounds {
            let chosen = balancer.choose(&among, &client(number)).unwrap();
            *counts.entry(port(chosen)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn each_has_its_turn_by_weight_and_heavy_ones_are_spread() {
        let all = endpoints(&[3, 1]);
        assert_eq!(
            counts(Balance::RoundRobin, &all, 8),
            [(1, 6), (2, 2)].into()
        );
        let balancer = Balancer::new(Balance::RoundRobin);
        let among = Vec::from_iter(&all);
        let turns = (0..4).map(|_| port(balancer.choose(&among, &client(0)).unwrap()));
        assert_eq!(Vec::from_iter(turns), [1, 1, 2, 1]);
    }

    #[test]
    fn the_one_with_the_fewest_connections_for_its_weight_is_taken() {
        let all = endpoints(&[1, 3]);
        let balancer = Balancer::new(Balance::LeastConnections);
        let among = Vec::from_iter(&all);
        let mut held = Vec::new();
        for _ in 0..40 {
            held.push(balancer.choose(&among, &client(0)).unwrap().dial());
        }
        assert_eq!((all[0].live(), all[1].live()), (10, 30));
    }

    #[test]
    fn of_two_at_random_the_busy_one_is_left_alone() {
        let all = endpoints(&[1, 1]);
        let _busy = all[0].dial();
        assert_eq!(counts(Balance::RandomTwo, &all, 50), [(2, 50)].into());
        // With three, the busiest is never the better of two.
        let all = endpoints(&[5, 1, 1]);
        let _busy = Vec::from_iter((0..20).map(|_| all[0].dial()));
        let counts = counts(Balance::RandomTwo, &all, 200);
        assert!(!counts.contains_key(&1), "{counts:?}");
    }

    #[test]
    fn a_source_keeps_its_upstream_when_another_one_fails() {
        let all = endpoints(&[1, 1, 2]);
        let balancer = Balancer::new(Balance::SourceHash);
        let among = Vec::from_iter(&all);
        let without_one = Vec::from_iter(&all[1..]);
        for number in 0..500 {
            let before = port(balancer.choose(&among, &client(number)).unwrap());
            let after = port(balancer.choose(&without_one, &client(number)).unwrap());
            assert!(before == 1 || before == after, "{number}: {before} {after}");
        }
        let counts = counts(Balance::SourceHash, &all, 4000);
        assert!((1700..2300).contains(&counts[&3]), "{counts:?}");
        assert!((800..1200).contains(&counts[&1]), "{counts:?}");
    }

    #[test]
    fn a_source_has_the_same_upstream_in_every_process() {
        let all = endpoints(&[1, 1, 1, 1]);
        let balancer = Balancer::new(Balance::SourceHash);
        let among = Vec::from_iter(&all);
        let chosen = (0..8).map(|number| port(balancer.choose(&among, &client(number)).unwrap()));
        assert_eq!(Vec::from_iter(chosen), [1, 4, 3, 2, 2, 2, 3, 3]);
    }
}
