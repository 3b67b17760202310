// SPDX-License-Identifier: Apache-2.0
#include "ccl/p2p/messages.h"

#include <algorithm>

#include "base/clock.h"
#include "progress/words.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kProbeNs = 100'000'000;

void finish(Message& message, int error) {
  message.error = error;
  message.finish();
}

/// Progress hooks for a thread that has no message to move. The end of its communicator does not wake it again and
/// again.
class WithoutMessages final : public ProgressHooks {
 public:
  Cause ended() const override { return {}; }
  Cause on_timeout(const Wait&) override { return {}; }
};

}  // namespace

Messages::Messages(uint32_t rank, uint32_t ranks, ChannelGroup::Provider& provider, ProgressHooks& hooks,
                   const WaitRules& rules, int64_t limit_ns)
    : rank_(rank), provider_(provider), hooks_(hooks), rules_(rules), limit_ns_(limit_ns) {
  progress::use_sleeper_fences();
  for (uint32_t peer = 0; peer < ranks; ++peer) peers_.emplace_back(peer);
}

Messages::~Messages() {
  ends_.store(true);
  notify_thread();
  if (thread_.has_started()) thread_.join();
}

void Messages::notify_thread() { progress::count_up(begun_, begun_.load() + 1, sleepers_, rules_.fences()); }

void Messages::begin(const Pointer& message) {
  std::lock_guard lock(mutex_);
  if (message->is_send && message->peer == rank_) {
    peers_[rank_].keep(*message);
    message->finish();
  } else if (message->is_send) {
    peers_[message->peer].add_send(message);
  } else {
    for (MessagePeer& peer : peers_)
      if (peer.give_kept(*message)) return;
    receives_.push_back(message);
  }
  progress();
}

int Messages::have_thread() {
  std::lock_guard lock(mutex_);
  if (thread_.has_started()) return 0;
  const auto started = thread_.start("nupa-ccl-msg", [this] { serve(); });
  return started ? 0 : started.error().code();
}

int Messages::begin_alone(const Pointer& message) {
  // The thread starts before the message begins: a receive that was refused must not write to the program's array
  // later.
  if (const int error = have_thread(); error != 0) return error;
  begin(message);
  std::lock_guard lock(mutex_);
  notify_thread();
  return 0;
}

bool Messages::wants_from(uint32_t rank) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const Pointer& receive) { return receive->peer == kNoRank || receive->peer == rank; });
}

bool Messages::wants_of(uint32_t rank) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const Pointer& receive) { return receive->peer == rank; });
}

bool Messages::is_idle() const {
  return receives_.empty() && std::none_of(peers_.begin(), peers_.end(), [](const MessagePeer& peer) {
           return peer.has_sends() || peer.is_coming();
         });
}

void Messages::give_kept(MessagePeer& peer) {
  for (auto receive = receives_.begin(); receive != receives_.end();)
    receive = peer.give_kept(**receive) ? receives_.erase(receive) : std::next(receive);
}

bool Messages::progress() {
  hooks_.look();
  if (const Cause cause = hooks_.ended(); cause) {
    end_all(cause.error);
    return false;
  }
  bool moved = false;
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    MessagePeer& peer = peers_[rank];
    if (rank == rank_) {
      give_kept(peer);
      continue;
    }
    const bool wants = wants_from(rank);
    if (!peer.has_sends() && !wants && !peer.is_coming()) continue;
    if (!peer.has_channel()) {
      // A receive from any rank uses the channels that exist, and creates none.
      if (peer.has_sends() || wants_of(rank)) provider_.want(rank);
      if (!provider_.ready(rank).is_over()) continue;
      peer.set_channel(&provider_.channel(rank));
    }
    moved = peer.push() || moved;
    const auto match = [&](uint32_t source, int32_t tag) -> Pointer {
      const auto found = std::find_if(receives_.begin(), receives_.end(),
                                      [&](const Pointer& receive) { return receive->takes(source, tag); });
      if (found == receives_.end()) return nullptr;
      Pointer taken = std::move(*found);
      receives_.erase(found);
      return taken;
    };
    while (peer.pull(match, [&] { return wants_from(rank); })) {
      moved = true;
      give_kept(peer);
    }
  }
  return moved;
}

void Messages::end_all(int error) {
  for (MessagePeer& peer : peers_) peer.end([&](Message& message) { finish(message, error); });
  for (const Pointer& receive : receives_) finish(*receive, error);
  receives_.clear();
}

std::vector<Wait> Messages::all_waits() {
  std::vector<Wait> waits;
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    MessagePeer& peer = peers_[rank];
    const bool wants = wants_from(rank) || peer.is_coming();
    if (rank == rank_ || (!peer.has_sends() && !wants)) continue;
    if (!peer.has_channel()) {
      waits.push_back(provider_.ready(rank));
      continue;
    }
    if (peer.has_sends()) waits.push_back(peer.channel().can_send());
    if (wants) waits.push_back(peer.channel().can_receive());
  }
  return waits;
}

int Messages::wait(const Pointer& message) {
  const int64_t first = base::now_ns();
  int64_t began = first;
  int64_t probed = first;
  uint32_t peer = kNoRank;  // a copy, because any thread may complete the message and set the peer
  for (int turn = 0; !message->done.load(std::memory_order_acquire); ++turn) {
    std::vector<Wait> waits;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      if (progress()) {
        turn = -1;
        began = base::now_ns();
      }
      if (message->done.load(std::memory_order_acquire)) break;
      waits = all_waits();
      peer = message->peer;
    }
    const int64_t now = base::now_ns();
    if (now - began >= limit_ns_) {
      hooks_.on_timeout({nullptr, 0, peer});
      continue;
    }
    if (now - probed >= kProbeNs) {
      probed = now;
      hooks_.note_long_wait_for(peer);
      for (const Wait& wait : waits) hooks_.on_long_wait(wait, now - began >= limit_ns_ / 2);
    }
    if (turn >= 0 && !waits.empty()) wait_a_turn(waits, rules_, hooks_, turn, began, limit_ns_ - (now - began));
  }
  if (probed != first) hooks_.note_long_wait_for(kNoRank);
  return message->error;
}

void Messages::serve() {
  WithoutMessages without;
  while (!ends_.load()) {
    std::vector<Wait> waits;
    const uint32_t begun = begun_.load(std::memory_order_acquire);
    bool idle = false;
    {
      std::lock_guard lock(mutex_);
      if (!is_idle() && progress()) continue;
      idle = is_idle();
      if (!idle) waits = all_waits();
    }
    waits.push_back({&begun_, begun + 1, kNoRank, &sleepers_});
    // A thread that waits for a message looks more often. This thread is for the time in which none waits.
    constexpr int kAtOnce = INT32_MAX;
    constexpr int64_t kLongestNs = 100'000'000;
    ProgressHooks& hooks = idle ? static_cast<ProgressHooks&>(without) : hooks_;
    // These are the rules of the writers: if they execute no fence, the sleeper has to order their stores.
    wait_a_turn(waits, {0, rules_.shares_cores}, hooks, kAtOnce, 0, kLongestNs);
  }
}

}  // namespace nupa::ccl
