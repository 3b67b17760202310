// SPDX-License-Identifier: Apache-2.0
#include "host/agent.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/memory_fault.h"
#include "base/ordered_copy.h"
#include "base/racing_copy.h"
#include "progress/waiter.h"

namespace nupa::host {
namespace {

using shm::AgentOp;
using shm::AgentShared;
using shm::AgentState;

/// memcpy within this process that returns EFAULT where a plain one would fault: the memory may be unmapped by now.
int move_checked(std::byte* to, const std::byte* from, uint64_t length, bool remote_is_target) {
  void* remote = remote_is_target ? to : const_cast<std::byte*>(from);
  void* local = remote_is_target ? const_cast<std::byte*>(from) : to;
  iovec mine{local, length};
  iovec theirs{remote, length};
  const ssize_t moved = remote_is_target ? process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0)
                                         : process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
  if (moved == static_cast<ssize_t>(length)) return 0;
  if (moved >= 0 || (errno != ENOSYS && errno != EPERM)) return EFAULT;
  // The calls are forbidden here.
  const bool copied = base::try_access(static_cast<std::byte*>(remote), length, [&] {
    if (remote_is_target)
      base::copy_in_order(to, from, length);
    else
      std::memcpy(to, from, length);
  });
  return copied ? 0 : EFAULT;
}

/// The same. The last word of remote memory becomes visible last (base::copy_in_order).
int copy_checked(void* to, const void* from, uint64_t length, bool remote_is_target) {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  uint64_t body = 0;
  if (remote_is_target && !base::kStoresInOrder)
    body = length - base::last_word_bytes(reinterpret_cast<uintptr_t>(to), length);
  if (body > 0) {
    if (const int error = move_checked(target, source, body, true); error != 0) return error;
    base::fence_before_writes();
  }
  return move_checked(target + body, source + body, length - body, remote_is_target);
}

int copy_bounce(host::Peer& asker, AgentOp op, uint64_t address, uint64_t length, uint64_t offset) {
  if (length > shm::kBounceBytes) return EINVAL;
  auto bounce = asker.heap(offset, shm::kBounceBytes);
  if (!bounce) return EINVAL;
  void* const memory = reinterpret_cast<void*>(address);
  return op == AgentOp::kWrite ? copy_checked(memory, *bounce, length, true)
                               : copy_checked(*bounce, memory, length, false);
}

/// The requester may change its request meanwhile, so each value is read once.
int execute(host::Peer& asker, AgentShared& request) {
  const auto op = static_cast<AgentOp>(__atomic_load_n(&request.op, __ATOMIC_RELAXED));
  const uint64_t address = __atomic_load_n(&request.address, __ATOMIC_RELAXED);
  if (op == AgentOp::kWrite || op == AgentOp::kRead)
    return copy_bounce(asker, op, address, __atomic_load_n(&request.length, __ATOMIC_RELAXED), request.bounce);
  void* const memory = reinterpret_cast<void*>(address);
  uint64_t probe;
  if (address % 8 != 0) return EINVAL;  // an aligned address of a key may be an unaligned one of the process
  if (copy_checked(&probe, memory, 8, false) != 0) return EFAULT;
  if (op != AgentOp::kCompareSwap && op != AgentOp::kFetchAdd && op != AgentOp::kAtomicWrite) return EINVAL;
  auto* word = static_cast<uint64_t*>(memory);
  uint64_t operand = __atomic_load_n(&request.operand, __ATOMIC_RELAXED);
  const uint64_t swap = __atomic_load_n(&request.swap, __ATOMIC_RELAXED);
  const auto change = [&] {
    base::fault_before_atomic(word);
    if (op == AgentOp::kCompareSwap)
      __atomic_compare_exchange_n(word, &operand, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    else if (op == AgentOp::kFetchAdd)
      operand = __atomic_fetch_add(word, operand, __ATOMIC_SEQ_CST);
    else
      __atomic_store_n(word, operand, __ATOMIC_SEQ_CST);
  };
  // The program may have made its memory read-only since, or unmapped it just now.
  if (!base::try_access(word, sizeof *word, change)) return EFAULT;
  request.operand = operand;
  return 0;
}

/// How long a request keeps its place before the owner begins it. After that it loses the place to another request and
/// is made again. So requests to a stopped process do not take all places from requests to others.
constexpr int64_t kPlaceNs = 10'000'000;
/// How long the result of a copy waits for its user, which usually checks each half millisecond.
constexpr int64_t kResultNs = 1'000'000'000;

}  // namespace

AgentShared* Agent::take(int64_t now) {
  auto& requests = node_.segment().tables().header->agents;
  AgentShared* oldest = nullptr;
  for (AgentShared& request : requests) {
    Place& place = place_of(request);
    const uint32_t seen = request.state.load(std::memory_order_acquire);
    const AgentState state = shm::agent_state_of(seen);
    const bool is_over = state == AgentState::kServed || (place.owner != nullptr && !place.owner->alive());
    // A copy can be repeated, so nothing is lost if its user does not come back.
    const bool is_left = state == AgentState::kServed && request.op <= static_cast<uint32_t>(AgentOp::kRead) &&
                         now - place.asked_ns >= kResultNs;
    if (state == AgentState::kFree || is_left || (place.given_up && is_over)) {
      place = {place.bounce, nullptr, now, false};
      request.state.store(shm::agent_word(shm::agent_generation_of(seen) + 1, AgentState::kTaken));
      return &request;
    }
    const bool may_go = state == AgentState::kAsked && now - place.asked_ns >= kPlaceNs;
    if (may_go && (oldest == nullptr || place.asked_ns < place_of(*oldest).asked_ns)) oldest = &request;
  }
  if (oldest == nullptr) return nullptr;
  uint32_t asked = oldest->state.load();
  const uint32_t taken = shm::agent_word(shm::agent_generation_of(asked) + 1, AgentState::kTaken);
  if (shm::agent_state_of(asked) != AgentState::kAsked || !oldest->state.compare_exchange_strong(asked, taken))
    return nullptr;  // the owner has just begun it
  place_of(*oldest).asked_ns = now;
  return oldest;
}

Agent::Place& Agent::place_of(const AgentShared& request) {
  return places_[static_cast<size_t>(&request - node_.segment().tables().header->agents)];
}

Result<std::byte*> Agent::bounce_of(Place& place) {
  if (place.bounce.address == nullptr) {
    auto block = node_.segment().allocate(shm::kBounceBytes);
    if (!block) return tl::unexpected(block.error());
    place.bounce = *block;
  }
  return static_cast<std::byte*>(place.bounce.address);
}

WcStatus AgentCall::ask(host::Peer& owner, const Step& step, const std::byte* local) {
  AgentShared* request;
  shm::Segment::Block bounce;
  const bool copies = step.op == AgentOp::kWrite || step.op == AgentOp::kRead;
  {
    std::lock_guard lock(agent_.mutex_);
    request = agent_.take(progress::now_ns());
    if (request == nullptr) return kNotServedYet;
    Agent::Place& place = agent_.place_of(*request);
    asked_word_ = shm::agent_word(shm::agent_generation_of(request->state.load()), AgentState::kAsked);
    if (auto made = copies ? agent_.bounce_of(place) : Result<std::byte*>(nullptr); !made) {
      NUPA_WARN("no memory for a bounce buffer: %s", made.error().what());
      request->state.store(shm::agent_word(shm::agent_generation_of(asked_word_), AgentState::kFree));
      return WcStatus::kGeneralErr;
    }
    place.owner = owner.shared_from_this();
    bounce = place.bounce;
  }
  if (step.op == AgentOp::kWrite) std::memcpy(bounce.address, local, step.length);
  request->op = static_cast<uint32_t>(step.op);
  request->address = step.remote;
  request->length = step.length;
  request->bounce = bounce.offset;
  request->operand = step.operand;
  request->swap = step.swap;
  request->target_instance = owner.instance();
  request->epoch = owner.tables().header->agent_epoch.load(std::memory_order_acquire);
  request->status = 0;
  request_ = request;
  asked_ = step;
  request->state.store(asked_word_, std::memory_order_release);
  shm::SegmentHeader& theirs = *owner.tables().header;
  const uint32_t slot = agent_.node_.slot();
  theirs.agent_attention[slot / 64].fetch_or(uint64_t{1} << (slot % 64));
  theirs.attention.fetch_or(shm::attention::kAgent);
  owner.signal_wakeup_fd();
  return WcStatus::kSuccess;
}

bool AgentCall::holds_place(uint32_t word) const {
  return shm::agent_generation_of(word) == shm::agent_generation_of(asked_word_);
}

WcStatus AgentCall::look(host::Peer& owner, std::byte* local, uint64_t* found) {
  const uint32_t word = request_->state.load(std::memory_order_acquire);
  if (!holds_place(word)) {
    request_ = nullptr;
    return kNotServedYet;
  }
  if (shm::agent_state_of(word) == AgentState::kServed) return take_result(local, found);
  if (owner.alive()) return kNotServedYet;
  drop();
  return WcStatus::kRetryExcErr;
}

WcStatus AgentCall::take_result(std::byte* local, uint64_t* found) {
  AgentShared& request = *std::exchange(request_, nullptr);
  Agent::Place& place = agent_.place_of(request);
  {
    std::lock_guard lock(agent_.mutex_);
    if (!holds_place(request.state.load())) return kNotServedYet;
    place.asked_ns = progress::now_ns();  // so that take() does not reuse the place while it is read
  }
  const uint32_t error = request.status;
  if (error == 0 && asked_.op == AgentOp::kRead) std::memcpy(local, place.bounce.address, asked_.length);
  if (error == 0 && found != nullptr) *found = request.operand;
  {
    std::lock_guard lock(agent_.mutex_);
    place.owner = nullptr;
    request.state.store(shm::agent_word(shm::agent_generation_of(asked_word_), AgentState::kFree));
  }
  if (error == 0) return WcStatus::kSuccess;
  // Something was revoked meanwhile. The next try looks the key up again.
  if (error == ESTALE) return kNotServedYet;
  return error == EINVAL ? WcStatus::kRemInvReqErr : WcStatus::kRemOpErr;
}

void AgentCall::drop() {
  if (request_ == nullptr) return;
  std::lock_guard lock(agent_.mutex_);
  AgentShared& request = *std::exchange(request_, nullptr);
  uint32_t word = asked_word_;
  const uint32_t free = shm::agent_word(shm::agent_generation_of(word), AgentState::kFree);
  if (request.state.compare_exchange_strong(word, free)) {
    agent_.place_of(request).owner = nullptr;
    return;
  }
  if (holds_place(word)) agent_.place_of(request).given_up = true;
}

void AgentCall::forget() {
  drop();
  done_.clear();
  waits_ = false;
}

WcStatus AgentCall::run(host::Peer& owner, const Step& step, std::byte* local, uint64_t* found) try {
  if (next_ < done_.size()) {
    if (done_[next_] == step) {
      ++next_;
      return WcStatus::kSuccess;
    }
    done_.resize(next_);
  }
  if (request_ != nullptr && asked_ != step) {
    // The owner may have resumed since.
    const uint32_t word = request_->state.load();
    if (holds_place(word) && shm::agent_state_of(word) == AgentState::kServed) silent_ = false;
    drop();
  }
  if (done_.size() == done_.capacity()) done_.reserve(2 * done_.size() + 1);
  const int64_t wait_ns = silent_ || agent_.node_.on_service_thread() ? 0 : wait_ns_;
  WcStatus status = kNotServedYet;
  const auto ends = [&] {
    if (request_ == nullptr) {
      status = ask(owner, step, local);
      if (status != WcStatus::kSuccess) return status != kNotServedYet;
    }
    status = look(owner, local, found);
    return status != kNotServedYet;
  };
  progress::wait_for(ends, progress::kLockPolicy,
                     wait_ns == 0 ? progress::Deadline::at(0) : progress::Deadline::in_ns(wait_ns));
  silent_ = status == kNotServedYet;
  if (status != WcStatus::kSuccess) return status;
  got_on_ = true;
  done_.push_back(step);
  next_ = done_.size();
  return status;
} catch (const std::bad_alloc&) {
  NUPA_WARN("no memory to request a copy from process %d", owner.pid());
  return WcStatus::kGeneralErr;
}

WcStatus AgentCall::copy(host::Peer& owner, bool write, uint64_t remote, std::byte* local, uint64_t length) {
  WcStatus status = WcStatus::kSuccess;
  while (status == WcStatus::kSuccess && length > 0) {
    const uint64_t part = std::min(length, shm::kBounceBytes);
    const AgentOp op = write ? AgentOp::kWrite : AgentOp::kRead;
    status = run(owner, {&owner, op, remote, part, write ? nullptr : local, 0, 0}, local, nullptr);
    remote += part;
    local += part;
    length -= part;
  }
  return status;
}

WcStatus AgentCall::atomic(host::Peer& owner, AgentOp op, uint64_t remote, uint64_t* operand, uint64_t swap) {
  return run(owner, {&owner, op, remote, 8, nullptr, *operand, swap}, nullptr, operand);
}

void Node::refuse_earlier_requests() {
  std::lock_guard lock(serving_);
  segment().tables().header->agent_epoch.fetch_add(1, std::memory_order_acq_rel);
}

void Agent::serve() {
  shm::SegmentHeader& mine = *node_.segment().tables().header;
  for (uint32_t word = 0; word < std::size(mine.agent_attention); ++word) {
    uint64_t bits = mine.agent_attention[word].exchange(0);
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t slot = word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      const host::PeerRef peer = node_.find(slot);
      if (peer == nullptr) continue;
      for (AgentShared& request : peer->tables().header->agents) {
        uint32_t seen = request.state.load(std::memory_order_acquire);
        if (shm::agent_state_of(seen) != AgentState::kAsked) continue;
        if (request.target_instance != mine.instance) continue;
        // Before this exchange the requester may take its request back. The generation shows whether it has made
        // another one since.
        const uint32_t generation = shm::agent_generation_of(seen);
        if (!request.state.compare_exchange_strong(seen, shm::agent_word(generation, AgentState::kServing))) continue;
        {
          std::lock_guard lock(node_.serving());
          const bool is_stale = request.epoch != mine.agent_epoch.load(std::memory_order_relaxed);
          request.status = static_cast<uint32_t>(is_stale ? ESTALE : execute(*peer, request));
        }
        request.state.store(shm::agent_word(generation, AgentState::kServed), std::memory_order_release);
      }
    }
  }
}

}  // namespace nupa::host
