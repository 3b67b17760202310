// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A program with connections. It checks that its events follow the rules, whatever its peers and the network do.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "cm/engine/engine.h"

namespace nupa::cm::testing {

enum class Role : uint8_t { kListener, kActive, kPassive, kAsker, kAnswerer };
enum class Event : uint8_t {
  kRequest,
  kDatagramRequest,
  kReply,
  kEstablished,
  kRejected,
  kUnreachable,
  kDisconnected,
  kTimeWaitExit,
  kDatagramReply
};

/// A program's record of one owner: its own calls, and the events that it got.
struct Record {
  Role role = Role::kListener;
  ConnectionId id = 0;
  uint64_t peer = 0;  ///< the owner at the other end, as its private data says
  uint8_t max_retries = 0;
  bool released = false;
  bool established = false;  ///< by establish() or a RTU
  bool accepted = false;
  bool refused = false;  ///< by reject(), which is the end
  bool answered = false;
  bool disconnecting = false;
  uint32_t event_counts[9] = {};
  uint16_t reason = 0;
  bool silent = false;  ///< disconnected without an answer

  uint32_t count(Event event) const { return event_counts[static_cast<size_t>(event)]; }
  bool asks() const { return role == Role::kActive || role == Role::kAsker; }
  /// Whether it had an answer, whatever came later.
  bool has_answer() const {
    return count(Event::kReply) + count(Event::kDatagramReply) + count(Event::kRejected) + count(Event::kUnreachable) >
           0;
  }
  /// Nothing more is to come.
  bool over() const {
    return refused || count(Event::kRejected) + count(Event::kUnreachable) + count(Event::kTimeWaitExit) > 0 ||
           count(Event::kDatagramReply) > 0 || (role == Role::kAnswerer && answered);
  }
  bool is_up() const { return established && !released && count(Event::kDisconnected) == 0 && !over(); }
};

/// Private data that says whose it is, and is wrong if a byte of it is.
template <size_t kRoom>
void sign(PrivateData<kRoom>& data, size_t at, uint64_t own, uint64_t peer) {
  std::memcpy(&data.bytes[at], &own, 8);
  std::memcpy(&data.bytes[at + 8], &peer, 8);
  for (size_t i = at + 16; i < kRoom; ++i) data.bytes[i] = static_cast<std::byte>(own * 31 + peer * 7 + i * 13);
  data.length = kRoom;
}
template <size_t kRoom>
bool is_signed(const PrivateData<kRoom>& data, size_t at, uint64_t* own, uint64_t* peer) {
  std::memcpy(own, &data.bytes[at], 8);
  std::memcpy(peer, &data.bytes[at + 8], 8);
  PrivateData<kRoom> expected = data;
  sign(expected, at, *own, *peer);
  return expected.bytes == data.bytes && data.length == kRoom;
}
constexpr size_t kAddressBytes = 36;  ///< before it in a REQ or SIDR_REQ of an IP service (IBTA annex A11)
constexpr uint64_t kIpService = 0x0000000001060000;

/// What programs of one world have in common.
struct Common {
  std::function<void(const std::string&)> broken;
  bool intact = true;  ///< every message that arrives is what another end sent
  uint64_t last_owner = 0;
};

class Program final : public ConnectionSink {
 public:
  Program(Common& common, uint32_t prefix, uint64_t seed, MadOutput& output)
      : guid(uint64_t{prefix} << 32 | 0x42), common_(common), engine(prefix, seed, output, *this) {}

  // Calls.

  uint64_t listen(const ListenerAddress& address) {
    const uint64_t owner = make(Role::kListener);
    engine.listen(owner, address);
    return owner;
  }
  void unlisten(uint64_t owner) {
    engine.unlisten(owner);
    records.at(owner).released = true;
  }
  uint64_t connect(ConnectionRequest request, const Way& way, int64_t now) {
    const uint64_t owner = make(Role::kActive);
    request.ca_guid = guid;
    if (request.qp_num == 0) request.qp_num = ++last_qpn_;
    address(request.service_id, way, request.private_data, owner);
    Record& record = records[owner];
    record.max_retries = request.max_cm_retries;
    require(engine.connect(request, way, owner, now, &record.id) == 0, "connect() finds an id");
    new_id(record.id);
    return owner;
  }
  uint64_t ask_datagram(DatagramRequest request, const Way& way, int64_t now) {
    const uint64_t owner = make(Role::kAsker);
    address(request.service_id, way, request.private_data, owner);
    Record& record = records[owner];
    require(engine.ask_datagram(request, way, owner, now, &record.id) == 0, "ask_datagram() finds an id");
    new_id(record.id);
    return owner;
  }
  void accept(uint64_t owner, int64_t now) {
    Record& record = records.at(owner);
    ConnectionReply reply;
    reply.ca_guid = guid;
    reply.qp_num = ++last_qpn_;
    sign(reply.private_data, 0, owner, record.peer);
    const bool may = is_in(record, {ConnectionState::kReqReceived, ConnectionState::kMraReqSent});
    const int result = engine.accept(record.id, reply, now);
    require(result == (may ? 0 : EINVAL), "accept() answers a REQ");
    if (result == 0) record.accepted = true;
  }
  void establish(uint64_t owner, int64_t now) {
    Record& record = records.at(owner);
    PrivateData<224> data;
    sign(data, 0, owner, record.peer);
    const bool may = is_in(record, {ConnectionState::kRepReceived, ConnectionState::kMraRepSent});
    const int result = engine.establish(record.id, data, now);
    require(result == (may ? 0 : EINVAL), "establish() answers a REP");
    if (result == 0) record.established = true;
  }
  void note_established(uint64_t owner) { engine.note_established(records.at(owner).id); }
  void reject(uint64_t owner, int64_t now) {
    Record& record = records.at(owner);
    PrivateData<148> data;
    sign(data, 0, owner, record.peer);
    const bool may =
        is_in(record, {ConnectionState::kReqReceived, ConnectionState::kMraReqSent, ConnectionState::kRepReceived,
                       ConnectionState::kMraRepSent, ConnectionState::kRepSent, ConnectionState::kMraRepReceived,
                       ConnectionState::kSidrReqReceived});
    const int result = engine.reject(record.id, static_cast<uint16_t>(RejectReason::kConsumer), data, now);
    require(result == (may ? 0 : EINVAL), "reject() answers a message");
    if (result == 0) record.refused = true;
  }
  void disconnect(uint64_t owner, int64_t now) {
    Record& record = records.at(owner);
    if (engine.disconnect(record.id, now) == 0) record.disconnecting = true;
  }
  void answer_datagram(uint64_t owner, int64_t now) {
    Record& record = records.at(owner);
    DatagramReply reply;
    reply.qp_num = ++last_qpn_;
    reply.qkey = 0x1234567;
    sign(reply.private_data, 0, owner, record.peer);
    const bool may = is_in(record, {ConnectionState::kSidrReqReceived});
    const int result = engine.answer_datagram(record.id, reply, now);
    require(result == (may ? 0 : EINVAL), "answer_datagram() answers a SIDR_REQ");
    if (result == 0) record.answered = true;
  }
  void release(uint64_t owner, int64_t now) {
    Record& record = records.at(owner);
    record.released = true;
    engine.release(record.id, now);
  }

  /// As the program ends.
  void release_all(int64_t now) {
    for (auto& [owner, record] : records) record.released = record.released || record.role != Role::kListener;
    engine.release_all(now);
  }

  // Events.

  uint64_t on_request(uint64_t owner, ConnectionId id, const ConnectionRequest& request) override {
    count_event(owner, Event::kRequest, Role::kListener);
    new_id(id);
    if (admits && !admits()) return 0;
    const uint64_t made = make(Role::kPassive);
    take_address(request.service_id, request.private_data, records[made]);
    records[made].id = id;
    records[made].max_retries = request.max_cm_retries;
    if (after) after(made, Event::kRequest);
    return made;
  }
  uint64_t on_datagram_request(uint64_t owner, ConnectionId id, const DatagramRequest& request) override {
    count_event(owner, Event::kDatagramRequest, Role::kListener);
    new_id(id);
    if (admits && !admits()) return 0;
    const uint64_t made = make(Role::kAnswerer);
    take_address(request.service_id, request.private_data, records[made]);
    records[made].id = id;
    if (after) after(made, Event::kDatagramRequest);
    return made;
  }
  void on_reply(uint64_t owner, const ConnectionReply& reply) override {
    Record& record = count_event(owner, Event::kReply, Role::kActive);
    require(record.count(Event::kReply) == 1, "one reply");
    take_signature(reply.private_data, owner, record);
    if (after) after(owner, Event::kReply);
  }
  void on_established(uint64_t owner, const PrivateData<224>& data) override {
    Record& record = count_event(owner, Event::kEstablished, Role::kPassive);
    require(record.accepted && !record.established, "established once, after accept()");
    require(record.count(Event::kDisconnected) == 0, "established before it is disconnected");
    record.established = true;
    if (data.length != 0) take_signature(data, owner, record);
    if (after) after(owner, Event::kEstablished);
  }
  void on_rejected(uint64_t owner, uint16_t reason, const PrivateData<148>& data) override {
    Record& record = count_event(owner, Event::kRejected, std::nullopt);
    require(record.role == Role::kActive || record.role == Role::kPassive, "connections are rejected");
    require(!record.established, "an established connection is disconnected, not rejected");
    require(record.count(Event::kDisconnected) == 0, "rejected or disconnected");
    record.reason = reason;
    if (reason == static_cast<uint16_t>(RejectReason::kConsumer) && data.length != 0 &&
        data.bytes != PrivateData<148>{}.bytes)
      take_signature(data, owner, record);
    if (after) after(owner, Event::kRejected);
  }
  void on_unreachable(uint64_t owner) override {
    Record& record = count_event(owner, Event::kUnreachable, std::nullopt);
    require(record.role != Role::kListener && !record.established, "what waits is unreachable");
    require(record.role != Role::kPassive || record.accepted, "a REP was not answered");
    require(record.role != Role::kActive || record.count(Event::kReply) == 0, "a REQ was not answered");
    if (after) after(owner, Event::kUnreachable);
  }
  void on_disconnected(uint64_t owner, bool silent) override {
    Record& record = count_event(owner, Event::kDisconnected, std::nullopt);
    record.silent = silent;
    require(record.established || record.accepted, "disconnected after it was connected");
    require(record.count(Event::kDisconnected) == 1, "disconnected once");
    if (after) after(owner, Event::kDisconnected);
  }
  void on_time_wait_exit(uint64_t owner) override {
    Record& record = count_event(owner, Event::kTimeWaitExit, std::nullopt);
    require(record.count(Event::kDisconnected) == 1, "time wait is over after the end");
    if (after) after(owner, Event::kTimeWaitExit);
  }
  void on_datagram_reply(uint64_t owner, const DatagramReply& reply) override {
    Record& record = count_event(owner, Event::kDatagramReply, Role::kAsker);
    if (reply.status == DatagramStatus::kValid) take_signature(reply.private_data, owner, record);
    if (after) after(owner, Event::kDatagramReply);
  }

  const uint64_t guid;
  std::map<uint64_t, Record> records;  ///< by owner
  std::function<bool()> admits;        ///< whether there is room for a request; none: always
  std::function<void(uint64_t owner, Event event)> after;

 private:
  void require(bool holds, const std::string& rule) {
    if (!holds) common_.broken(rule);
  }
  uint64_t make(Role role) {
    records[++common_.last_owner].role = role;
    return common_.last_owner;
  }
  void new_id(ConnectionId id) { require(id != 0 && ids_.insert(id).second, "an id is used again late"); }
  bool is_in(const Record& record, std::initializer_list<ConnectionState> states) const {
    return std::find(states.begin(), states.end(), engine.state(record.id)) != states.end();
  }
  /// Counts the event, and checks that its owner may get it.
  Record& count_event(uint64_t owner, Event event, std::optional<Role> role) {
    const auto found = records.find(owner);
    require(found != records.end(), "every event has an owner that was given");
    Record& record = found->second;
    require(!record.released, "no events after release");
    require(!role || record.role == *role, "an event is for an owner of its role");
    require(!record.over(), "no events after the last");
    ++record.event_counts[static_cast<size_t>(event)];
    return record;
  }
  template <size_t kRoom>
  static void address(uint64_t service, const Way& way, PrivateData<kRoom>& data, uint64_t owner) {
    const bool ip = service >> 24 == kIpService >> 24;
    sign(data, ip ? kAddressBytes : 0, owner, 0);
    if (!ip) return;
    data.bytes[1] = std::byte{0x40};
    std::memcpy(&data.bytes[20 + 12], &way.remote.raw[12], 4);
  }
  template <size_t kRoom>
  void take_address(uint64_t service, const PrivateData<kRoom>& data, Record& record) {
    uint64_t none = 0;
    const bool whole = is_signed(data, service >> 24 == kIpService >> 24 ? kAddressBytes : 0, &record.peer, &none);
    require(!common_.intact || whole, "private data of a request is unchanged");
  }
  template <size_t kRoom>
  void take_signature(const PrivateData<kRoom>& data, uint64_t owner, Record& record) {
    uint64_t theirs = 0;
    uint64_t ours = 0;
    const bool whole = is_signed(data, 0, &theirs, &ours);
    if (!common_.intact) return;
    require(whole, "private data is unchanged");
    require(ours == owner, "a message reaches whom it is for");
    require(record.peer == 0 || record.peer == theirs, "one connection has one peer");
    record.peer = theirs;
  }

  Common& common_;
  std::set<ConnectionId> ids_;
  uint32_t last_qpn_ = 0;  ///< another life of the program begins anew, so its connections are stale

 public:
  ConnectionEngine engine;
};

}  // namespace nupa::cm::testing
