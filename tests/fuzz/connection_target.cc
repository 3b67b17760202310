// SPDX-License-Identifier: Apache-2.0
// Three communication managers between whom the input is the network, and a program on each. Messages are lost,
// overtaken, repeated, changed in any byte, made up; programs make any call at any time, die and start again; time
// passes in any steps. Rules: ../sim/connection_program.h, and below.
#include "connection_ends.h"
#include "targets.h"

namespace nupa::fuzz {
namespace {

using namespace cm;
using cm::testing::Event;
using cm::testing::Program;
using cm::testing::Record;
using cm::testing::Role;

constexpr uint64_t kServices[] = {0x1234, cm::testing::kIpService + 5, 0x1230, ~uint64_t{0}};

class Play : private ConnectionEnds {
 public:
  explicit Play(Input& input) : ConnectionEnds(input.u8() % 2 == 0), input_(input) {}

  void run() {
    // A bound on the steps keeps each input short enough to be tried often.
    for (int steps = 0; steps < 300 && !input_.used_up(); ++steps) {
      step();
      for (const End& end : ends_) check(*end.program);
    }
    end();
  }

 private:
  /// Some connection of a program that it has not let go of; 0: there is none.
  uint64_t pick(const Program& program) {
    std::vector<uint64_t> owners;
    for (const auto& [owner, record] : program.records)
      if (record.role != Role::kListener && !record.released) owners.push_back(owner);
    return owners.empty() ? 0 : owners[owners.size() - 1 - input_.u8() % owners.size()];
  }

  void call(Program& program) {
    const uint32_t what = input_.u8();
    const uint64_t owner = pick(program);
    if (owner == 0) return;
    switch (what % 8) {
      case 0:
      case 1:
        return program.accept(owner, now_);
      case 2:
        return program.establish(owner, now_);
      case 3:
        return program.reject(owner, now_);
      case 4:
        return program.disconnect(owner, now_);
      case 5:
        return program.answer_datagram(owner, now_);
      case 6:
        whole_ = false;  // which its peer need not be
        return program.note_established(owner);
      default:
        return program.release(owner, now_);
    }
  }
  /// What the message at hand waits for, as a program that wants to be connected does.
  void go_on(Program& program) {
    for (const auto& [owner, record] : std::map(program.records)) {
      if (record.released || record.role == Role::kListener) continue;
      switch (program.engine.state(record.id)) {
        case ConnectionState::kReqReceived:
        case ConnectionState::kMraReqSent:
          program.accept(owner, now_);
          break;
        case ConnectionState::kRepReceived:
        case ConnectionState::kMraRepSent:
          program.establish(owner, now_);
          break;
        case ConnectionState::kSidrReqReceived:
          program.answer_datagram(owner, now_);
          break;
        default:
          break;
      }
    }
  }
  void listen(Program& program) {
    const uint32_t how = input_.u8();
    ListenerAddress address;
    address.service_id = kServices[how % 4];
    if (how / 4 % 4 == 1) address.mask = ~uint64_t{0xf};
    address.any_address = how / 16 % 4 != 1;
    address.address = cm::testing::World::gid_of(how / 64);
    address.only_v4 = how / 16 % 4 == 2;
    address.only_v6 = how / 16 % 4 == 3;
    program.listen(address);
  }
  void unlisten(Program& program) {
    for (const auto& [owner, record] : program.records)
      if (record.role == Role::kListener && !record.released) return program.unlisten(owner);
  }
  void connect(Program& program, size_t from) {
    const uint32_t how = input_.u8();
    const uint32_t more = input_.u8();
    ConnectionRequest request;
    request.service_id = kServices[how % 4];
    request.remote_response_timeout = static_cast<uint8_t>(more % 32);
    request.local_response_timeout = static_cast<uint8_t>(more / 8);
    request.max_cm_retries = static_cast<uint8_t>(how / 16);
    request.path.ack_timeout = static_cast<uint8_t>(more % 20);
    request.qp_num = more / 128;  // the same one again, or a new one
    if (how / 4 % 2 == 0) request.type = QpType::kXrcSend;
    program.connect(request, way(from, how / 8 % kEnds), now_);
  }
  void ask_datagram(Program& program, size_t from) {
    const uint32_t how = input_.u8();
    DatagramRequest request;
    request.service_id = kServices[how % 4];
    request.response_timeout = static_cast<uint8_t>(how / 4 % 32);
    request.max_cm_retries = static_cast<uint8_t>(how / 16);
    program.ask_datagram(request, way(from, how / 8 % kEnds), now_);
  }

  /// Some bytes are others.
  Letter change(Letter letter) {
    common_.intact = false;
    for (uint32_t changes = 1 + input_.below(4); changes > 0; --changes) {
      const uint32_t at = input_.u8();
      letter.mad[at] = static_cast<std::byte>(input_.u8());
    }
    return letter;
  }
  /// A message of another kind with the ids of the last one, as its sender or its receiver could send it.
  Letter forge() {
    common_.intact = false;
    Letter letter = last_;
    const uint32_t how = input_.u8();
    letter.mad[17] = static_cast<std::byte>(0x10 + how % 11);
    const auto ids = letter.mad.begin() + 24;
    if (how / 16 % 2 == 1) std::swap_ranges(ids, ids + 4, ids + 4);
    if (how / 32 % 2 == 1) std::swap(letter.from, letter.to);
    if (how / 64 % 2 == 1) {  // the id of any connection of the receiver's
      const uint64_t owner = pick(*ends_[letter.to].program);
      if (owner != 0) put_id(letter.mad, 28, ends_[letter.to].program->records.at(owner).id);
    }
    if (how / 128 % 2 == 1) {
      const uint64_t owner = pick(*ends_[letter.from].program);
      if (owner != 0) put_id(letter.mad, 24, ends_[letter.from].program->records.at(owner).id);
    }
    letter.life = ends_[letter.from].life;
    return letter;
  }
  static void put_id(Mad& mad, size_t at, ConnectionId id) {
    for (size_t i = 0; i < 4; ++i) mad[at + i] = static_cast<std::byte>(id >> (24 - 8 * i));
  }

  void step() {
    const uint32_t what = input_.u8();
    const size_t index = what / 16 % kEnds;
    Program& program = *ends_[index].program;
    switch (what % 16) {
      case 0:
        return listen(program);
      case 1:
        return connect(program, index);
      case 2:
        return what / 64 == 0 ? ask_datagram(program, index) : go_on(program);
      case 3:
      case 4:
        return call(program);
      case 5:
        return go_on(program);
      case 6:
        if (!under_way_.empty()) deliver(take(0));
        return;
      case 7:
      case 8: {  // one that has overtaken others arrives; or is lost, or comes twice
        if (under_way_.empty()) return;
        const size_t at = input_.u8() % under_way_.size();
        if (what / 16 % 4 == 0) {
          whole_ = false;
          return void(take(at));
        }
        return deliver(what / 16 % 4 == 1 ? Letter(under_way_[at]) : take(at));
      }
      case 9:
        if (!under_way_.empty()) deliver(change(take(0)));
        return;
      case 10:
        return deliver(what / 128 == 0 ? change(last_) : forge());
      case 11:
        return deliver(forge());
      case 12:
        return pass(int64_t{1 + input_.u8()} << input_.below(36));
      case 13:
        if (next() != INT64_MAX) pass(std::max<int64_t>(next() - now_, 0));
        return;
      case 14:
        return change_settings(index);
      default:
        return flow();
    }
  }
  void change_settings(size_t index) {
    const uint32_t choice = input_.u8();
    Program& program = *ends_[index].program;
    whole_ = whole_ && choice % 5 < 2;
    switch (choice % 5) {
      case 0:
        admits_ = !admits_;
        return;
      case 1:
        return unlisten(program);
      case 2:
        return program.engine.peer_exited(choice / 8 % 4, choice / 32, now_);
      case 3:  // dies, and starts again
        if (choice / 8 % 2 == 0) program.release_all(now_);
        return start(index);
      default:
        return program.release_all(now_);
    }
  }

  /// What a program knows of its connection is what its manager does.
  static void check(const Program& program) {
    for (const auto& [owner, record] : program.records) {
      if (record.role == Role::kListener || record.released) continue;
      const ConnectionState state = program.engine.state(record.id);
      if (record.is_up())
        require(state == ConnectionState::kEstablished || state == ConnectionState::kDreqSent,
                "who is up is connected");
      if (record.count(Event::kRejected) + record.count(Event::kUnreachable) + record.count(Event::kTimeWaitExit) > 0)
        require(state == ConnectionState::kIdle, "after the last event nothing is under way");
      if (record.count(Event::kDisconnected) > record.count(Event::kTimeWaitExit))
        require(state == ConnectionState::kTimeWait, "after the end is time wait");
    }
  }

  /// What came of it all when nothing is under way any more.
  void check_outcomes() {
    std::map<uint64_t, const Record*> all;
    for (const End& end : ends_)
      for (const auto& [owner, record] : end.program->records) all[owner] = &record;
    for (const auto& [owner, record] : all) {
      if (record->released) continue;
      require(!record->asks() || record->has_answer(), "every question has an answer");
      if (!common_.intact || !whole_ || !record->is_up()) continue;
      require(all.count(record->peer) != 0, "who is connected has a peer");
      require(all.at(record->peer)->is_up() && all.at(record->peer)->peer == owner, "both ends are connected, or none");
    }
  }
  /// The network is as it should be; then programs let go, and nothing may arrive any more: nothing is left behind.
  void end() {
    const bool delivers = input_.left() % 2 == 0;
    settle(true);
    check_outcomes();
    for (const End& end : ends_)
      for (const auto& [owner, record] : std::map(end.program->records))
        if (record.role != Role::kListener && !record.released) end.program->release(owner, now_);
    settle(delivers);
    for (const End& end : ends_) {
      const ConnectionEngine& engine = end.program->engine;
      require(engine.connections() == 0 && engine.entries() == 0, "nothing is left of connections");
    }
  }

  Input& input_;
};

}  // namespace

void connection(const uint8_t* data, size_t length) {
  Input input(data, length);
  Play(input).run();
}

}  // namespace nupa::fuzz
