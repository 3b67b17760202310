#pragma once
#include "core/cq.h"
#include "segment/receive_ring.h"
#include "transport/roce/host.h"

namespace nupa::core {

class Qp;
class ReceiveQueue;
class Srq;

/// What a packet transport's engine sees of a queue pair: this process's keys, receives and completion queues. All
/// calls come with the queue pair's send lock held.
class WireHost final : public roce::Host {
 public:
  explicit WireHost(Qp& qp) : qp_(qp) {}

  bool locate(const Sge& sge, uint32_t rights, std::byte** data) override;
  WcStatus run_local(const SendWr& wr) override;
  void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) override;
  std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) override;
  Take take_receive(uint32_t srqn) override;
  uint64_t receive_room() const override;
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override;
  void complete_receive(const roce::Inbound& message, WcStatus status) override;
  void return_receive() override;
  bool invalidate(uint32_t rkey) override;
  void refuse(std::optional<EventType> event) override;
  uint8_t rnr_timer() const override;
  void established() override;

 private:
  /// XRC: the shared receive queue that a request names; null: none in the domain.
  Srq* xrc_srq(uint32_t srqn) const;

  Qp& qp_;
  ReceiveQueue* queue_ = nullptr;  ///< that `claim_` is of
  Srq* srq_ = nullptr;
  segment::ReceiveRing::Claim claim_;
};

}  // namespace nupa::core
