#pragma once
#include <optional>

#include "transport/window/target.h"
#include "transport/window/window.h"

namespace nupa::window {

/// The initiator's side of an RC, UC or XRC queue pair (IBTA 9.7, 9.8).
class Connected final : public transport::Endpoint {
 public:
  Connected(Window& window, const transport::LocalQp& qp, const AddressVector& vector, uint32_t remote_qpn);

  transport::Outcome execute(const transport::Request& request) override;
  Reach reach() override;
  const cm::Peer* peer() const override { return target_ == nullptr ? nullptr : &target_->peer(); }
  const char* name() const override { return "shm"; }
  Result<std::shared_ptr<std::byte>> map_remote(uint32_t rkey, uint64_t address, uint64_t length,
                                                uint32_t rights) override;

 private:
  transport::Outcome send(const transport::Request& request);
  transport::Outcome rdma_write(const transport::Request& request);
  transport::Outcome rdma_read(const transport::Request& request);
  transport::Outcome atomic(const transport::Request& request);
  transport::Outcome atomic_write(const transport::Request& request);

  bool find_target();
  bool reliable() const { return qp_.type != QpType::kUc; }
  /// The responder refuses: RC and XRC report it on both sides, UC drops the message (IBTA 9.9.3, class D).
  [[gnu::cold]] transport::Outcome refuse(EventType event, WcStatus status);
  [[gnu::cold]] transport::Outcome not_ready();
  [[gnu::cold]] transport::Outcome not_answering();
  transport::Outcome atomic_by_agent(segment::AgentOp op, const RemoteRange& range, uint64_t swap, uint64_t* operand);
  Message message_for(const transport::Request& request) const;

  Target* target_ = nullptr;  ///< once it was met
  transport::LocalQp qp_;
  uint32_t own_slot_;
  uint32_t remote_qpn_;
  std::optional<Target> met_;
  Window& window_;
  AddressVector vector_;
  int64_t next_search_ns_ = 0;
  int search_error_ = 0;
};

}  // namespace nupa::window
