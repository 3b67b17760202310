// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Two hosts; a program on 0 connects to one on 1.
#include <gtest/gtest.h>

#include "connection_world.h"

namespace nupa::cm::testing {

using State = ConnectionState;

constexpr uint64_t kService = 0x1234;
constexpr uint8_t kResponseTimeout = 14;  // 67 ms
constexpr int64_t kTrip = 1'000'000;      // more than a message takes

class Connections : public ::testing::Test {
 protected:
  Connections() {
    ListenerAddress address;
    address.service_id = kService;
    listener = server().listen(address);
    for (const size_t host : {0, 1})
      world.at(host).after = [this, host](uint64_t owner, Event event) { happened(host, owner, event); };
    world.drops = [this](const Message& message, const Envelope& envelope) {
      ++sent[envelope.attribute];
      sent_at[envelope.attribute].push_back(world.now);
      if (envelope.attribute == Attribute::kRej) reason = read_rejection(message.mad).reason;
      if (envelope.attribute == Attribute::kApr) path_status = static_cast<uint8_t>(message.mad[24 + 9]);
      const auto found = to_drop.find(envelope.attribute);
      if (found == to_drop.end() || found->second == 0) return false;
      --found->second;
      return true;
    };
  }
  void happened(size_t host, uint64_t owner, Event event) {
    told_at[{host, event}].push_back(world.now);
    if (host == 1 && event == Event::kRequest) passive = owner;
    if (host == 1 && event == Event::kRequest && accepts)
      world.plan(0, [this] { server().accept(passive, world.now); });
    if (host == 0 && event == Event::kReply && establishes)
      world.plan(0, [this, owner] { client().establish(owner, world.now); });
  }
  Program& client() { return world.at(0); }
  Program& server() { return world.at(1); }
  static ConnectionRequest request_of(uint8_t retries) {
    ConnectionRequest request;
    request.service_id = kService;
    request.remote_response_timeout = request.local_response_timeout = kResponseTimeout;
    request.max_cm_retries = retries;
    return request;
  }
  uint64_t connect(const ConnectionRequest& request) {
    return active = client().connect(request, world.way(0, 1), world.now);
  }
  uint64_t connect(uint8_t retries = 5, uint64_t service = kService, uint32_t qp_num = 0) {
    ConnectionRequest request = request_of(retries);
    request.service_id = service;
    request.qp_num = qp_num;
    return connect(request);
  }
  void connected() {
    connect();
    world.run(3 * kTrip);
    ASSERT_EQ(State::kEstablished, state(0));
    ASSERT_EQ(State::kEstablished, state(1));
  }
  const Record& record_of(size_t host) { return *world.record(host == 0 ? active : passive); }
  State state(size_t host) { return world.at(host).engine.state(record_of(host).id); }
  /// Both programs let go: nothing is left.
  void TearDown() override {
    for (const size_t host : {0, 1})
      for (const auto& [owner, record] : std::map(world.at(host).records))
        if (!record.released && record.role != Role::kListener) world.at(host).release(owner, world.now);
    world.run();
    for (const size_t host : {0, 1}) {
      EXPECT_EQ(0u, world.at(host).engine.connections());
      EXPECT_EQ(INT64_MAX, world.at(host).engine.deadline());
    }
  }
  /// A message of the server's to the client, or the other way, as an end would send it.
  void forge(size_t from, const Mad& mad) { world.deliver({from, world.life(from), 1 - from, mad}); }
  Envelope envelope(size_t from, Attribute attribute) {
    return {attribute, 99, record_of(from).id, record_of(1 - from).id};
  }

  World world{2, 1};
  uint64_t listener = 0;
  uint64_t active = 0;
  uint64_t passive = 0;
  bool accepts = true;
  bool establishes = true;
  std::map<Attribute, uint32_t> to_drop;
  std::map<Attribute, uint32_t> sent;
  std::map<Attribute, std::vector<int64_t>> sent_at;                 ///< when each message left
  std::map<std::pair<size_t, Event>, std::vector<int64_t>> told_at;  ///< when each event came
  uint16_t reason = 0;
  uint8_t path_status = 0xff;
};

}  // namespace nupa::cm::testing
