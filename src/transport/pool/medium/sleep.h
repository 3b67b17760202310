// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sleep and wake between processes of a pool: the sleeper announces its sleep and looks once more, and a process that
/// has published something looks for the announcement. Between its store and its look each side has a full fence. So
/// one of both sees the other: the sleeper finds what was published, or it is rung. tests/model/pool_sleep_test.cc runs
/// these functions.

#include "transport/pool/medium/cache_policy.h"
#include "transport/pool/medium/lines.h"

namespace nupa::pool {

/// Announces in the process's own line that it sleeps, or that it does not any more.
template <CachePolicy Policy>
void put_sleep(Policy& policy, Line* own, bool sleeps) {
  put_word(policy, own, sleeps ? 1 : 0);
  policy.full_fence();
}

/// `announce(bool)`: put_sleep(). `has_come()`: something was published for this process. True: the process may sleep,
/// and calls announce(false) when it is awake. False: something has come.
template <class Announce, class HasCome>
bool fall_asleep(Announce&& announce, HasCome&& has_come) {
  announce(true);
  if (!has_come()) return true;
  announce(false);
  return false;
}

/// For a process that has published something for another one. True: that one sleeps, or is about to, and must be rung.
template <CachePolicy Policy>
bool is_asleep(Policy& policy, const Line* others) {
  policy.full_fence();
  return policy.poll(others) != 0;
}

}  // namespace nupa::pool
