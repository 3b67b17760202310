#pragma once
#include <memory>
#include <optional>

#include "core/seam/qp_context.h"
#include "core/seam/shared_target.h"

namespace nupa::core {

class Qp;

/// A queue pair as a transport sees it: this process's keys, receives and completion queues. All calls come with the
/// queue pair's send lock held.
class QpContextImpl final : public QpContext {
 public:
  /// `qp` has its number and its place in the tables.
  explicit QpContextImpl(Qp& qp);

  bool locate(const Sge& sge, uint32_t rights, std::byte** data) override;
  WcStatus run_local(const SendWr& wr) override;
  void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) override;
  void wake() override;
  void wake_at(int64_t when_ns) override;
  std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) override;
  bool wrote(uint32_t length) override;
  bool awaits_memory() const override { return awaits_memory_; }
  WcStatus run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                      uint64_t swap) override;
  Selection select(uint32_t srqn) override;
  bool take_receive() override;
  uint64_t receive_room() override { return holds_receive() ? receive_.room() : 0; }
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override;
  void complete_receive(const Inbound& message, WcStatus status) override;
  void return_receive() override;
  bool invalidate(uint32_t rkey) override;
  void refuse(std::optional<EventType> event) override;
  uint8_t rnr_timer() const override;
  void established() override;
  /// The queue pair leaves the states that receive: nothing is gone on with.
  void forget_calls() {
    if (target_) target_->forget_calls();
  }

 private:
  bool is_xrc() const { return type() == QpType::kXrcRecv; }
  /// This queue pair as a target. It is as the tables have it now.
  SharedTarget& target();
  /// Whether `receive_` is still to be filled: an owner may have taken an XRC domain's queue away.
  bool holds_receive();
  /// Notes whether the owner of memory has yet to serve a call that returned `status`.
  bool succeeded(WcStatus status) {
    awaits_memory_ = status == host::kNotServedYet;
    return status == WcStatus::kSuccess;
  }
  /// Memory of another process that is not shared, by a copy of at most one packet.
  std::byte* copy_of(const host::RemoteRange& range, uint64_t length, uint32_t rights);

  Qp& qp_;
  std::optional<SharedTarget> target_;
  SharedTarget::Receive receive_;
  uint32_t selected_ = 0;       ///< XRC: the queue that was selected last
  uint32_t receive_queue_ = 0;  ///< XRC: the one that `receive_` is of, and its life
  uint64_t receive_life_ = 0;
  std::unique_ptr<std::byte[]> copy_;
  bool awaits_memory_ = false;
  bool written_ = false;  ///< `copy_` is of `written_range_`
  host::RemoteRange written_range_{};
};

}  // namespace nupa::core
