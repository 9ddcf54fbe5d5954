// SPDX-License-Identifier: GPL-2.0
//! Which boots a measurement makes, in which order, and what each of them draws.

use crate::state::{State, Workload};
use rand_pcg::rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sha2::{Digest, Sha256};

/// What a boot draws so that chance in the layout of memory and time is averaged over instead of being
/// taken for an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Perturbation {
    /// Bytes added to the kernel's command line.
    pub pad: usize,
    /// Processes forked before the workload.
    pub forks: u64,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// Seed of the guest's random numbers.
    pub seed: u64,
}

impl Perturbation {
    /// The one declared population: 0 to 199 bytes, 0 to 39 forks, 1024 to 1087 MiB, any seed.
    fn draw(stream: &str) -> Self {
        let mut rng = rng(stream);
        Self {
            pad: (rng.next_u64() % 200) as usize,
            forks: rng.next_u64() % 40,
            memory_mib: 1024 + (rng.next_u64() % 64) as u32,
            seed: rng.next_u64() >> 33,
        }
    }
}

/// A generator for one purpose: streams of different names are unrelated.
fn rng(stream: &str) -> Pcg64Mcg {
    let mut seed = [0; 16];
    seed.copy_from_slice(&Sha256::digest(stream)[..16]);
    Pcg64Mcg::from_seed(seed)
}

/// One boot to be made.
#[derive(Debug, Clone)]
pub struct Boot {
    /// What is run,
    pub workload: Workload,
    /// in which state,
    pub state: State,
    /// the how manieth of its arm, from 0,
    pub index: usize,
    /// and under which circumstances.
    pub perturbation: Perturbation,
}

/// The boots of a run, in the order in which they are made: rounds of one boot for each arm, each
/// round shuffled, so that whatever the host does meets all arms alike. No more than `most` of an arm. What
/// a state is compared with is among them.
pub fn plan(workloads: &[Workload], states: &[State], seed: u64, most: usize) -> Vec<Boot> {
    let mut boots = Vec::new();
    for &workload in workloads {
        let mut states = states.to_vec();
        states.extend(states.clone().into_iter().map(State::baseline));
        states.sort_unstable();
        states.dedup();
        let boots_of = |s: State| workload.boots(s).min(most);
        let rounds = states.iter().map(|s| boots_of(*s)).max().unwrap_or(0);
        for index in 0..rounds {
            let mut round: Vec<Boot> = states
                .iter()
                .filter(|s| index < boots_of(**s))
                .map(|&state| {
                    let mut stream = format!("{seed} {} {index}", workload.name());
                    if !workload.paired() {
                        stream += state.name();
                    }
                    Boot {
                        workload,
                        state,
                        index,
                        perturbation: Perturbation::draw(&stream),
                    }
                })
                .collect();
            let mut rng = rng(&format!("{seed} {} order {index}", workload.name()));
            for i in (1..round.len()).rev() {
                round.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
            }
            boots.append(&mut round);
        }
    }
    boots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_share_a_perturbation_and_others_do_not() {
        let states = [State::Off, State::On];
        let boots = plan(
            &[Workload::Read4k, Workload::Mkfs10],
            &states,
            1,
            usize::MAX,
        );
        let find = |w, s, i| {
            let mut b = boots.iter();
            b.find(|b: &&Boot| (b.workload, b.state, b.index) == (w, s, i))
                .map(|b| b.perturbation)
        };
        for i in 0..8 {
            let none = find(Workload::Read4k, State::None, i);
            assert!(none.is_some());
            assert_eq!(none, find(Workload::Read4k, State::Off, i));
            assert_eq!(none, find(Workload::Read4k, State::On, i));
            assert_ne!(
                find(Workload::Mkfs10, State::None, i),
                find(Workload::Mkfs10, State::On, i)
            );
        }
        assert_ne!(
            find(Workload::Read4k, State::None, 0),
            find(Workload::Read4k, State::None, 1)
        );
        assert_eq!(find(Workload::Read4k, State::On, 8), None);
        assert_eq!(boots.len(), 16 + 16 + 8 + 3 * 10);
    }

    #[test]
    fn a_seed_decides_everything() {
        let order = |seed| -> Vec<_> {
            plan(&[Workload::Mkfs10], &[State::Off, State::Blktrace], seed, 9)
                .into_iter()
                .map(|b| (b.state, b.index, b.perturbation.pad))
                .collect()
        };
        assert_eq!(order(5), order(5));
        assert_ne!(order(5), order(6));
    }
}
