#include "host/agent.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/memory_fault.h"
#include "progress/waiter.h"

namespace nupa::host {
namespace {

using shm::AgentOp;
using shm::AgentShared;
using shm::AgentState;

/// memcpy within this process that answers EFAULT where a plain one would fault: the memory may be unmapped by now.
int copy_checked(void* to, const void* from, uint64_t length, bool remote_is_target) {
  void* remote = remote_is_target ? to : const_cast<void*>(from);
  void* local = remote_is_target ? const_cast<void*>(from) : to;
  iovec mine{local, length};
  iovec theirs{remote, length};
  const ssize_t moved = remote_is_target ? process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0)
                                         : process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0);
  if (moved == static_cast<ssize_t>(length)) return 0;
  if (moved < 0 && (errno == ENOSYS || errno == EPERM)) {  // forbidden here: trust that the region is still mapped
    std::memcpy(to, from, length);
    return 0;
  }
  return EFAULT;
}

int copy_bounce(host::Peer& asker, AgentOp op, uint64_t address, uint64_t length, uint64_t offset) {
  if (length > shm::kBounceBytes) return EINVAL;
  auto bounce = asker.heap(offset, shm::kBounceBytes);
  if (!bounce) return EINVAL;
  void* const memory = reinterpret_cast<void*>(address);
  return op == AgentOp::kWrite ? copy_checked(memory, *bounce, length, true)
                               : copy_checked(*bounce, memory, length, false);
}

/// The asker may change its request meanwhile: each value is read once.
int execute(host::Peer& asker, AgentShared& request) {
  const auto op = static_cast<AgentOp>(__atomic_load_n(&request.op, __ATOMIC_RELAXED));
  const uint64_t address = __atomic_load_n(&request.address, __ATOMIC_RELAXED);
  if (op == AgentOp::kWrite || op == AgentOp::kRead)
    return copy_bounce(asker, op, address, __atomic_load_n(&request.length, __ATOMIC_RELAXED), request.bounce);
  void* const memory = reinterpret_cast<void*>(address);
  uint64_t probe;
  if (address % 8 != 0) return EINVAL;  // a key's even address may lie at an odd one of the process
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

}  // namespace

AgentShared* Agent::take() {
  progress::Waiter waiter(progress::kLockPolicy);
  for (;;) {
    for (AgentShared& request : node_.segment().tables().header->agents) {
      auto free = static_cast<uint32_t>(AgentState::kFree);
      if (request.state.compare_exchange_strong(free, static_cast<uint32_t>(AgentState::kTaken))) return &request;
    }
    waiter.turn();
  }
}

Result<std::byte*> Agent::bounce_of(uint32_t index) {
  std::lock_guard lock(mutex_);
  if (bounce_[index].address == nullptr) {
    auto block = node_.segment().allocate(shm::kBounceBytes);
    if (!block) return tl::unexpected(block.error());
    bounce_[index] = *block;
  }
  return static_cast<std::byte*>(bounce_[index].address);
}

WcStatus Agent::ask(host::Peer& peer, AgentShared& request) {
  request.target_instance = peer.instance();
  request.status = 0;
  request.state.store(static_cast<uint32_t>(AgentState::kAsked), std::memory_order_release);
  shm::SegmentHeader& theirs = *peer.tables().header;
  theirs.agent_attention[node_.slot() / 64].fetch_or(uint64_t{1} << (node_.slot() % 64));
  theirs.attention.fetch_or(shm::attention::kAgent);
  peer.ring_doorbell();
  progress::Waiter waiter(progress::kLockPolicy);
  while (request.state.load(std::memory_order_acquire) != static_cast<uint32_t>(AgentState::kServed)) {
    if (!peer.alive()) return WcStatus::kRetryExcErr;
    if (node_.on_service_thread()) serve();
    waiter.turn();
  }
  if (request.status == 0) return WcStatus::kSuccess;
  return request.status == EINVAL ? WcStatus::kRemInvReqErr : WcStatus::kRemOpErr;
}

WcStatus Agent::copy(host::Peer& peer, bool write, uint64_t remote, std::byte* local, uint64_t length) {
  AgentShared* request = take();
  const auto index = static_cast<uint32_t>(request - node_.segment().tables().header->agents);
  WcStatus status = WcStatus::kSuccess;
  auto bounce = bounce_of(index);
  if (!bounce) {
    NUPA_WARN("no memory for a bounce buffer: %s", bounce.error().what());
    status = WcStatus::kGeneralErr;
  }
  while (status == WcStatus::kSuccess && length > 0) {
    const uint64_t step = std::min(length, shm::kBounceBytes);
    request->op = static_cast<uint32_t>(write ? AgentOp::kWrite : AgentOp::kRead);
    request->address = remote;
    request->length = step;
    request->bounce = bounce_[index].offset;
    if (write) std::memcpy(*bounce, local, step);
    status = ask(peer, *request);
    if (status == WcStatus::kSuccess && !write) std::memcpy(local, *bounce, step);
    remote += step;
    local += step;
    length -= step;
  }
  request->state.store(static_cast<uint32_t>(AgentState::kFree), std::memory_order_release);
  return status;
}

WcStatus Agent::atomic(host::Peer& peer, AgentOp op, uint64_t remote, uint64_t* operand, uint64_t swap) {
  AgentShared* request = take();
  request->op = static_cast<uint32_t>(op);
  request->address = remote;
  request->length = 8;
  request->operand = *operand;
  request->swap = swap;
  const WcStatus status = ask(peer, *request);
  *operand = request->operand;
  request->state.store(static_cast<uint32_t>(AgentState::kFree), std::memory_order_release);
  return status;
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
        if (request.state.load(std::memory_order_acquire) != static_cast<uint32_t>(AgentState::kAsked)) continue;
        if (request.target_instance != mine.instance) continue;
        request.status = static_cast<uint32_t>(execute(*peer, request));
        request.state.store(static_cast<uint32_t>(AgentState::kServed), std::memory_order_release);
      }
    }
  }
}

}  // namespace nupa::host
