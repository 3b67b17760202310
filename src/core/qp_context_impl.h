#pragma once
#include <memory>
#include <unordered_map>

#include "core/cq.h"
#include "segment/receive_ring.h"
#include "core/seam/qp_context.h"
#include "transport/window/domain_queue.h"

namespace nupa::core {

class Qp;
class ReceiveQueue;
class Srq;

/// What a transport sees of a queue pair: this process's keys, receives and completion queues. All calls come with the
/// queue pair's send lock held.
class QpContextImpl final : public QpContext {
 public:
  /// Of a queue pair that has its number and its place in the tables.
  explicit QpContextImpl(Qp& qp);

  bool locate(const Sge& sge, uint32_t rights, std::byte** data) override;
  WcStatus run_local(const SendWr& wr) override;
  void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) override;
  void wake() override;
  void wake_at(int64_t when_ns) override;
  void peer_gone() override;
  std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) override;
  bool wrote(uint32_t length) override;
  WcStatus run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                      uint64_t swap) override;
  Take take_receive(uint32_t srqn) override;
  uint64_t receive_room() const override;
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override;
  void complete_receive(const Inbound& message, WcStatus status) override;
  void return_receive() override;
  bool invalidate(uint32_t rkey) override;
  void refuse(std::optional<EventType> event) override;
  uint8_t rnr_timer() const override;
  void established() override;

 private:
  bool is_xrc() const;
  /// Whether `claim_` is still to be filled: an owner may have taken an XRC domain's queue away.
  bool holds_receive() const;
  /// XRC: the shared receive queue that a request names, of this process or another one; null: none in the domain.
  window::DomainReceiver* receiver_of(uint32_t srqn);
  std::byte* reach_in_domain(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights);

  Qp& qp_;
  // What `claim_` is of: a queue of this process, or with XRC `receiver_`.
  ReceiveQueue* queue_ = nullptr;
  Srq* srq_ = nullptr;
  window::DomainReceiver* receiver_ = nullptr;
  segment::ReceiveRing::Claim claim_;
  std::unordered_map<uint32_t, std::unique_ptr<window::DomainReceiver>> receivers_;  ///< XRC: by number
  // Of memory of another process that is not shared.
  std::unique_ptr<std::byte[]> copy_;
  window::DomainReceiver* written_ = nullptr;  ///< `copy_` is of `written_range_` there
  window::RemoteRange written_range_{};
};

}  // namespace nupa::core
