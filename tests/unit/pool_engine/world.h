// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Hosts of a fake pool with queue pairs. The test's thread takes the turns.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "fake_pool.h"
#include "transport/pool/datagram_endpoint.h"
#include "transport/pool/endpoint.h"
#include "transport/pool/engine.h"
#include "../roce/engine_fixture.h"

namespace nupa::pool::test {

using roce::test::kBase;
using roce::test::kKey;
using roce::test::pattern_bytes;
using roce::test::RecordingHost;

constexpr uint32_t kFirstSequence = 0xfffe;  ///< soon wraps

/// A queue pair's core side, with a state.
class Context {
 public:
  Context(uint32_t number, QpType type, const QpCap& cap) {
    auto& identity = host.identity();
    identity.number = number;
    identity.type = type;
    identity.cap = cap;
    identity.shared = &shared;
    identity.statistics = &statistics;
    set_state(QpState::kRts);
    shared.qkey.store(0x1234);
  }
  void set_state(QpState state) { shared.state.store(shm::pack_state(1, state)); }

  shm::QpShared shared{};
  shm::StatisticsShared statistics{};
  RecordingHost host;
};

struct Host {
  Host(Medium& medium, uint16_t number, bool is_coherent = true) : pool(medium, number) {
    pool.coherent = is_coherent;
    Description description;
    description.slots = {1u + number};
    description.gids = {gid_of_host(number)};
    engine = std::move(*Engine::open(pool, description));
  }
  void turn() { engine->take_turn(progress::Receiver::kThread); }

  FakePool pool;
  std::unique_ptr<Engine> engine;
};

inline AddressVector path_to(uint16_t host) {
  AddressVector vector;
  vector.is_global = true;
  vector.dgid = gid_of_host(host);
  return vector;
}

/// A connected queue pair of a host.
class Pair {
 public:
  Pair(Host& host, uint16_t peer_host, uint32_t index, uint32_t peer_index, QpType type = QpType::kRc,
       const std::function<void(QpAttr&)>& change = {}, core::Relay* relay = nullptr)
      : host_(host),
        context(shm::number_of(1u + host.pool.host(), index), type,
                {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 512}) {
    attr.dest_qp_num = shm::number_of(1u + peer_host, peer_index);
    attr.av = path_to(peer_host);
    attr.rq_psn = attr.sq_psn = kFirstSequence;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
    if (change) change(attr);
    context.host.passes_to = relay;
    endpoint.emplace(*host.engine, context.host, attr, host.engine->claim_link(attr.av, attr.dest_qp_num));
    endpoint->set_attributes(attr);
    endpoint->start(attr.sq_psn);
  }
  ~Pair() {
    endpoint->stop();
    endpoint->withdraw();
  }

  RecordingHost& core() { return context.host; }
  void post(SendWr wr, uint64_t offset = 0, uint32_t length = 0, WcStatus fault = WcStatus::kSuccess) {
    Sge sge{kBase + offset, length, kKey};
    if (length > 0) {
      wr.sg_list = &sge;
      wr.num_sge = 1;
    }
    ASSERT_TRUE(core().try_enter());
    endpoint->post({wr, nullptr, nullptr, 0, length, 0, fault});
    endpoint->send();
    core().leave();
  }
  /// Its relay has more to report.
  void answer() {
    ASSERT_TRUE(core().try_enter());
    endpoint->answer();
    core().leave();
  }
  void send(uint64_t id, uint32_t length, uint64_t offset = 0) {
    SendWr wr;
    wr.wr_id = id;
    post(wr, offset, length);
  }

  Host& host_;
  Context context;
  QpAttr attr;
  std::optional<ConnectedEndpoint> endpoint;
};

class PoolEngine : public testing::Test {
 protected:
  static constexpr uint32_t kLines = 1024;  ///< parts of 8 KiB

  PoolEngine() : PoolEngine(kLines) {}
  explicit PoolEngine(uint32_t lines, bool has_doorbells = false) : medium(lines) {
    medium.has_doorbells = has_doorbells;
    for (uint16_t number = 0; number < 3; ++number) hosts.push_back(std::make_unique<Host>(medium, number));
  }
  void turns() {
    for (const auto& host : hosts) host->turn();
  }
  /// Takes turns until the condition holds.
  template <class Condition>
  [[nodiscard]] bool until(Condition&& condition) {
    const int64_t limit = base::now_ns() + INT64_C(10'000'000'000);
    while (!condition()) {
      turns();
      if (base::now_ns() > limit) return false;
    }
    return true;
  }
  /// Takes turns until the queue pair has completed so many requests.
  [[nodiscard]] bool done(Pair& pair, size_t number) {
    return until([&] { return pair.core().done.size() >= number; });
  }

  Medium medium;
  std::vector<std::unique_ptr<Host>> hosts;
};

}  // namespace nupa::pool::test
