// SPDX-License-Identifier: Apache-2.0
/// Service id resolution (IBTA 12.11), and the address that a listener is for (annex A11).
#include <gtest/gtest.h>

#include "cm/engine/engine.h"
#include "connection_engine.h"

namespace nupa::cm::engine_test {
namespace {

using Events = std::vector<Event>;

constexpr uint64_t kIpPort = 0x0000000001060007;

// 12.11: service id resolution.

class EngineDatagrams : public Engine {
 protected:
  static Mad sidr_req(uint32_t id, uint64_t transaction = 1, uint64_t service = kService) {
    DatagramRequest request;
    request.service_id = service;
    return write({Attribute::kSidrReq, transaction, id, 0}, request);
  }
};

TEST_F(EngineDatagrams, ARepeatedSidrReq_IsReportedOnce) {
  const uint64_t owner = make(State::kSidrReqReceived, way_to(2));
  receive(sidr_req(kTheirId), way_to(2));
  EXPECT_TRUE(sent.empty() && events.empty()) << "its answer is on its way";
  ASSERT_EQ(0, engine.answer_datagram(ids[owner], {}, kNow));
  receive(sidr_req(kTheirId), way_to(2));
  EXPECT_TRUE(events.empty());
  ASSERT_EQ(1u, sent.size()) << "the answer was lost";
  EXPECT_EQ(kTheirId, sent[0].envelope.remote_id);
}

TEST_F(EngineDatagrams, ASidrReqWithAnotherTransactionOrPath_IsAnotherOne) {
  make(State::kSidrReqReceived, way_to(2));
  receive(sidr_req(kTheirId, 2), way_to(2));
  EXPECT_EQ((Events{{EventKind::kDatagramRequest, last_owner, kListener}}), events);
  receive(sidr_req(kTheirId, 2), way_to(3));
  EXPECT_EQ((Events{{EventKind::kDatagramRequest, last_owner, kListener}}), events);
  receive(sidr_req(kTheirId, 2), way_to_slot(9, 3));
  EXPECT_EQ((Events{{EventKind::kDatagramRequest, last_owner, kListener}}), events);
  receive(sidr_req(kTheirId, 2), way_to(2));
  EXPECT_TRUE(events.empty()) << "that one is known";
}

TEST_F(EngineDatagrams, AnUnknownService_IsAnsweredAsUnsupported) {
  receive(sidr_req(kTheirId, 1, kService + 1), way_to(2));
  ASSERT_EQ(1u, sent.size());
  EXPECT_EQ(Attribute::kSidrRep, sent[0].envelope.attribute);
  EXPECT_EQ(DatagramStatus::kUnsupported, read_datagram_reply(sent[0].mad).status);
  EXPECT_EQ(kService + 1, read_service(sent[0].mad));
  EXPECT_EQ(0u, engine.connections());
}

TEST_F(EngineDatagrams, ASidrRep_OfAnotherService_IsIgnored) {
  const uint64_t owner = make(State::kSidrReqSent, way_to(2));
  const auto rep = [&](uint64_t service) {
    return write({Attribute::kSidrRep, 1, 0, ids[owner]}, DatagramReply{}, service);
  };
  expect_ignored(owner, State::kSidrReqSent, rep(kService + 1));
  receive(rep(kService), way_to(2));
  EXPECT_EQ((Events{{EventKind::kDatagramReply, owner, 0}}), events);
  expect_ignored(owner, State::kIdle, rep(kService));
  const uint64_t connecting = make(State::kReqSent, way_to(2));
  expect_ignored(connecting, State::kReqSent,
                 write({Attribute::kSidrRep, 1, 0, ids[connecting]}, DatagramReply{}, kService));
}

// Annex A11: for which address.

Mad req_to(const Gid& address, uint8_t version, uint32_t id, uint64_t service = kIpPort) {
  ConnectionRequest request;
  request.service_id = service;
  request.ca_guid = kTheirGuid;
  request.private_data.bytes[1] = static_cast<std::byte>(version << 4);
  std::copy_n(reinterpret_cast<const std::byte*>(address.raw.data()), 16, &request.private_data.bytes[20]);
  request.private_data.length = request.private_data.room();
  return write({Attribute::kReq, 1, id, 0}, request);
}

class EngineListeners : public Engine {
 protected:
  /// Returns the listener that gets a request, or 0.
  uint64_t listener_for(const Gid& address, uint8_t version = 4, uint64_t service = kIpPort) {
    receive(req_to(address, version, ++id_, service), way_to(2));
    return events.empty() ? 0 : events[0].detail;
  }
  static ListenerAddress any() {
    ListenerAddress address;
    address.service_id = kIpPort;
    return address;
  }
  static ListenerAddress exact(uint8_t host) {
    ListenerAddress address = any();
    address.any_address = false;
    address.address = gid_of(host);
    return address;
  }
  uint32_t id_ = 0;
};

TEST_F(EngineListeners, TheExactAddressComesFirst_InEitherOrderOfListening) {
  engine.listen(1, any());
  engine.listen(2, exact(4));
  EXPECT_EQ(2u, listener_for(gid_of(4)));
  EXPECT_EQ(1u, listener_for(gid_of(5)));
  engine.unlisten(1);
  engine.unlisten(2);
  EXPECT_EQ(0u, listener_for(gid_of(4)));
  engine.listen(3, exact(4));
  engine.listen(4, any());
  EXPECT_EQ(3u, listener_for(gid_of(4)));
  EXPECT_EQ(4u, listener_for(gid_of(5)));
}

TEST_F(EngineListeners, TheExactAddressComesFirst_BesideARangeOfServices) {
  for (const bool exact_first : {true, false}) {
    ListenerAddress wide = any();
    wide.mask = ~uint64_t{0xff};
    ListenerAddress near = exact(4);
    near.mask = ~uint64_t{0xff};
    engine.listen(exact_first ? 1 : 2, exact_first ? near : wide);
    engine.listen(exact_first ? 2 : 1, exact_first ? wide : near);
    EXPECT_EQ(1u, listener_for(gid_of(4), 4, kIpPort + 1)) << exact_first;
    EXPECT_EQ(2u, listener_for(gid_of(5), 4, kIpPort + 1)) << exact_first;
    EXPECT_EQ(0u, listener_for(gid_of(4), 4, kIpPort + 0x100));
    engine.unlisten(1);
    EXPECT_EQ(2u, listener_for(gid_of(4), 4, kIpPort + 1)) << "the other one stays";
    engine.unlisten(2);
  }
}

TEST_F(EngineListeners, AListenerOfOneAddress_GetsNoRequestsToOthers) {
  engine.listen(1, exact(4));
  EXPECT_EQ(1u, listener_for(gid_of(4)));
  EXPECT_EQ(0u, listener_for(gid_of(5)));
  EXPECT_EQ(kInvalidService, rejection_in(sent.at(0)).reason);
  const Gid here = gid_of(4), elsewhere = gid_of(5);
  EXPECT_TRUE(engine.listens(kIpPort, &here));
  EXPECT_FALSE(engine.listens(kIpPort, &elsewhere));
  EXPECT_FALSE(engine.listens(kIpPort, nullptr)) << "a request that names no address";
  EXPECT_FALSE(engine.listens(kIpPort + 1, &here));
}

TEST_F(EngineListeners, AListenerOfOneFamily_GetsNoRequestsToTheOther) {
  Gid six;
  six.raw[0] = 0x20;
  ListenerAddress v4 = any(), v6 = any();
  v4.only_v4 = v6.only_v6 = true;
  engine.listen(1, v4);
  EXPECT_EQ(1u, listener_for(gid_of(4)));
  EXPECT_EQ(0u, listener_for(six, 6));
  engine.unlisten(1);
  engine.listen(2, v6);
  EXPECT_EQ(0u, listener_for(gid_of(4)));
  EXPECT_EQ(2u, listener_for(six, 6));
  EXPECT_TRUE(engine.listens(kIpPort, nullptr));
}

TEST(Destination, Destination_OfAnIpService_IsThatOfItsHeader) {
  std::vector<std::byte> header(36);
  header[1] = std::byte{0x40};
  header[32] = std::byte{10};
  header[35] = std::byte{4};
  EXPECT_EQ(gid_of(4), destination_of(kIpPort, header));
  EXPECT_FALSE(destination_of(kService, header)) << "no port of IP";
  EXPECT_FALSE(destination_of(kIpPort, std::span(header).first(35))) << "cut short";
  EXPECT_FALSE(destination_of(kIpPort, {}));
  for (const uint8_t version : {0, 5, 7, 15}) {
    header[1] = static_cast<std::byte>(version << 4);
    EXPECT_FALSE(destination_of(kIpPort, header)) << int{version};
  }
  header[1] = std::byte{0x60};
  for (uint8_t i = 0; i < 16; ++i) header[20 + i] = static_cast<std::byte>(i + 1);
  const std::optional<Gid> six = destination_of(kIpPort, header);
  ASSERT_TRUE(six);
  for (uint8_t i = 0; i < 16; ++i) EXPECT_EQ(i + 1, six->raw[i]);
}

}  // namespace
}  // namespace nupa::cm::engine_test
