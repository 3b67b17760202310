// SPDX-License-Identifier: Apache-2.0
// Two engines between whom the input is the network, and a program on each side. What may happen to packets: they are
// lost, overtaken, repeated, changed in any field, made up; time passes in any steps. Rules: guarded_host.h,
// engine_end.h, and below.
#include "forge.h"
#include "targets.h"

namespace nupa::fuzz {
namespace {

using namespace roce;

class Play {
 public:
  explicit Play(Input& input) : input_(input), pool_(pool_size(input.u8())), options_(options(input)) {}

  void run() {
    // A bound on the steps keeps each input short enough to be tried often.
    for (int steps = 0; steps < 400 && !input_.used_up(); ++steps) step();
    end();
  }

 private:
  static uint32_t pool_size(uint8_t choice) { return choice % 4 == 0 ? 2 : 64; }

  static EngineOptions options(Input& input) {
    static constexpr Service kServices[] = {Service::kRc, Service::kRc, Service::kUc, Service::kXrc};
    static constexpr uint32_t kMtus[] = {256, 1024, 4096};
    static constexpr uint32_t kPsns[] = {0, 0xfffff0, 0x7ffff8, 0x123456};
    static constexpr std::string_view kControls[] = {"none", "dcqcn", "swift", "tolerant"};
    EngineOptions options;
    const uint32_t first = input.u8();
    const uint32_t second = input.u8();
    options.requester.service = options.responder.service = kServices[first % 4];
    options.requester.mtu = options.responder.mtu = kMtus[first / 4 % 3];
    options.requester.first_psn = options.responder.first_psn = kPsns[first / 16 % 4];
    options.requester.mark = options.responder.mark = second % 4 == 0 ? 0 : kNupaMark;
    options.requester.congestion = kControls[second / 4 % 4];
    options.responder.window = second / 32 % 2 == 0 ? 0 : 16384;
    options.requester.dest_qpn = options.responder.peer_qpn = 0x1234;
    options.requester.max_wr = 16;
    options.requester.max_sge = 3;
    options.requester.max_inline = 128;
    return options;
  }

  Sge sge(uint32_t key, uint32_t most) {
    const uint32_t offset = input_.u16() % GuardedHost::kBytes;
    uint32_t length = input_.u16() % (most + 1);
    if (input_.left() % 16 != 0)
      length = std::min<uint32_t>(length, static_cast<uint32_t>(GuardedHost::kBytes) - offset);
    return {GuardedHost::base_of(key) + offset, length, key};
  }

  void post(EngineEnd& end) {
    Requester& requester = end.connection().requester();
    if (end.stopped || requester.full()) return;
    static constexpr Opcode kReliable[] = {Opcode::kSend,        Opcode::kSendWithImm,      Opcode::kSendWithInv,
                                           Opcode::kRdmaWrite,   Opcode::kRdmaWriteWithImm, Opcode::kRdmaRead,
                                           Opcode::kRdmaRead,    Opcode::kCompareSwap,      Opcode::kFetchAdd,
                                           Opcode::kAtomicWrite, Opcode::kLocalInv};
    SendWr wr;
    wr.opcode = kReliable[input_.below(end.options().requester.service == Service::kUc ? 5 : 11)];
    const uint32_t how = input_.u8();
    const bool fills =
        wr.opcode == Opcode::kRdmaRead || wr.opcode == Opcode::kCompareSwap || wr.opcode == Opcode::kFetchAdd;
    const bool word =
        wr.opcode == Opcode::kAtomicWrite || wr.opcode == Opcode::kCompareSwap || wr.opcode == Opcode::kFetchAdd;
    Sge list[3];
    wr.sg_list = list;
    wr.num_sge = how % 4;
    for (uint32_t i = 0; i < wr.num_sge; ++i) {
      list[i] = sge(how % 64 == 1 ? GuardedHost::kNoKey : fills ? GuardedHost::kResults : GuardedHost::kSource, 9000);
      if (word && how % 8 != 7) list[i].length = i == 0 ? 8 : 0;
    }
    std::byte inlined[120] = {};
    if (!fills && how / 64 == 1) {
      wr.flags |= send_flag::kInline;
      for (uint32_t i = 0; i < wr.num_sge; ++i)
        list[i] = {reinterpret_cast<uint64_t>(inlined), std::min(list[i].length, 40u), 0};
    }
    if (how / 64 == 2) wr.flags |= send_flag::kFence;
    if (how / 4 % 2 == 0) wr.flags |= send_flag::kSolicited;
    wr.rkey = how % 32 == 2                    ? GuardedHost::kNoKey
              : wr.opcode == Opcode::kRdmaRead ? GuardedHost::kConstants
                                               : GuardedHost::kRemote;
    wr.remote_addr = GuardedHost::base_of(wr.rkey) + (word ? input_.u8() * 8u : input_.u16() / 8u);
    wr.imm_or_rkey = how * 2;
    wr.remote_srqn = how % 3;
    wr.wr_id = end.host.requests++;
    requester.post(wr, static_cast<uint32_t>(wr.wr_id));
  }

  void post_receive(EngineEnd& end) {
    std::vector<Sge> list(input_.below(3));
    for (Sge& each : list) each = sge(GuardedHost::kReceives, 12000);
    end.host.post_receive(std::move(list));
  }

  void pass(int64_t nanoseconds) {
    now_ += nanoseconds;
    for (EngineEnd* end : {&a_, &b_}) {
      end->on_timer(now_);
      end->transmit(now_);
      if (!end->blocked) require(end->deadline() > now_, "a timer that went off is set anew");
    }
  }

  /// The network as it should be, for `rounds` round trips.
  void flow(uint32_t rounds) {
    for (; rounds > 0; --rounds) {
      pass(5'000);
      for (auto [from, to] : {std::pair{&a_, &b_}, std::pair{&b_, &a_}}) {
        while (!from->under_way.empty()) {
          const Wire bytes = std::move(from->under_way.front());
          from->under_way.pop_front();
          to->deliver(bytes, false, now_);
        }
      }
    }
  }

  void change_settings(EngineEnd& end) {
    const uint32_t choice = input_.u8();
    if (end.stopped) return;
    switch (choice % 6) {
      case 0:
        end.connection().requester().pause(choice / 8 % 2 == 0);
        return;
      case 1:
        end.host.revoked = choice / 8 % 2 == 0;
        return;
      case 2:
        end.host.local_fails = true;
        return;
      case 3:
        end.connection().responder().set_max_rd_atomic(static_cast<uint8_t>(choice / 8 % 8));
        return;
      case 4:
        end.blocked = choice / 8 % 2 == 0;
        return;
      default:
        end.connection().requester().set_limits(
            {static_cast<uint8_t>(choice / 8 % 16), static_cast<uint8_t>(choice % 8),
             static_cast<uint8_t>(choice / 16 % 8)},
            static_cast<uint8_t>(choice / 8 % 5));
    }
  }

  void step() {
    const uint32_t what = input_.u8();
    EngineEnd& from = what / 128 == 0 ? a_ : b_;
    EngineEnd& to = what / 128 == 0 ? b_ : a_;
    switch (what % 16) {
      case 0:
      case 1:
        return post(from);
      case 2:
        return post_receive(to);
      case 3:
        return from.transmit(now_);
      case 4:
      case 5:
      case 6: {  // what is first, or has overtaken others, arrives; or is lost, or comes twice
        if (from.under_way.empty()) return;
        const size_t at = what % 16 == 4 ? 0 : input_.u8() % from.under_way.size();
        const Wire bytes = from.under_way[at];
        if (what / 16 % 4 != 0) from.under_way.erase(from.under_way.begin() + static_cast<ptrdiff_t>(at));
        if (what / 16 % 4 != 1) to.deliver(bytes, what / 16 % 4 == 2, now_);
        return;
      }
      case 7:
      case 8: {
        if (from.under_way.empty()) return;
        const Wire bytes = forge(input_, from.under_way.front());
        if (what / 16 % 2 == 0) from.under_way.pop_front();
        return to.deliver(bytes, false, now_);
      }
      case 9:
      case 10:
        if (!from.last.empty()) to.deliver(forge(input_, from.last), false, now_);
        return;
      case 11:
        return pass(int64_t{1 + input_.u8()} << (input_.below(32)));
      case 12: {
        const int64_t when = std::min(a_.deadline(), b_.deadline());
        return pass(when == INT64_MAX ? 0 : std::max<int64_t>(when - now_, 0));
      }
      case 13:
        return change_settings(from);
      default:
        return flow(1 + what / 16 % 8);
    }
  }

  /// Nothing arrives any more: each request ends within its patience, and nothing is left behind.
  void end() {
    for (EngineEnd* end : {&a_, &b_}) {
      end->blocked = false;
      if (end->stopped) continue;
      end->connection().requester().set_limits({.timeout = 4, .retry_cnt = 1, .rnr_retry = 1}, 4);
      end->connection().requester().pause(false);
    }
    for (int hops = 0;; ++hops) {
      pass(0);
      if (a_.idle() && b_.idle()) break;
      const int64_t when = std::min(a_.deadline(), b_.deadline());
      require(when != INT64_MAX, "what waits has a time at which it goes on");
      require(hops < 20'000, "what waits comes to an end");
      now_ = std::max(now_, when);
    }
    for (EngineEnd* end : {&a_, &b_}) {
      require(end->host.completed == end->host.requests, "every request completes");
      const bool reliable = end->options().requester.service != Service::kUc;
      if (!end->stopped && reliable)
        require(end->connection().requester().paths()[0].in_flight == 0, "nothing is under way when nothing waits");
      end->destroy();
      require(!end->host.holds_receive(), "no receive is kept");
    }
    require(pool_.free() == size_, "every buffer came back");
  }

  Input& input_;
  PacketPool pool_;
  const uint32_t size_ = pool_.free();
  const EngineOptions options_;
  EngineEnd a_{options_, pool_};
  EngineEnd b_{options_, pool_};
  int64_t now_ = 1'000'000;
};

}  // namespace

void engine(const uint8_t* data, size_t length) {
  Input input(data, length);
  Play(input).run();
}

}  // namespace nupa::fuzz
