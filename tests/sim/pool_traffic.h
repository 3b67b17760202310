// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the programs of simulated hosts send each other over a pool, and what must come of it.
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "pool_world.h"
#include "transport/pool/datagram_endpoint.h"
#include "transport/pool/endpoint.h"

namespace nupa::pool::sim {

/// A queue pair's core side: what the core does for its transport, as far as a transport can see it.
class CoreSide : public core::QpContext {
 public:
  CoreSide(Process& process, QpType type, uint32_t index);

  bool locate(const Sge& sge, uint32_t rights, std::byte** data) override;
  WcStatus run_local(const SendWr&) override { return WcStatus::kSuccess; }
  std::byte* reach(uint32_t, uint32_t, uint64_t, uint64_t, uint32_t) override { return nullptr; }
  bool take_receive() override;
  uint64_t receive_room() override { return kRoom; }
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override;
  void return_receive() override;
  bool invalidate(uint32_t) override { return true; }
  uint8_t rnr_timer() const override { return 1; }  // 10 us
  void established() override {}

  Process& process() { return process_; }
  void set_state(QpState state) { shared_.state.store(shm::pack_state(1, state)); }
  uint32_t receives = 0;  ///< posted

 protected:
  static constexpr uint32_t kRoom = 8192;
  void fault(const std::string& text);

  Process& process_;
  std::vector<std::byte> placed_;  ///< in the receive that is taken

 private:
  shm::QpShared shared_{};
  shm::StatisticsShared statistics_{};
};

/// One end of a connection: it sends messages to the other one, and checks those that come from there.
class ConnectionEnd final : public CoreSide {
 public:
  ConnectionEnd(Process& process, QpType type, uint32_t index);

  /// `to` is the other end.
  void set_peer(ConnectionEnd& to) { peer_ = &to; }
  /// Connects the queue pair. `attr`: but the address of the peer.
  void connect(QpAttr attr);
  bool is_connected() const { return endpoint_.has_value(); }
  /// Posts a request at random. Nothing happens if the queue is full, or has failed.
  void post_random();
  void post_receives(uint32_t number);
  /// The program destroys the queue pair.
  void destroy();

  uint64_t posted() const { return sent_.size(); }
  uint64_t completed() const { return completed_; }
  uint64_t succeeded() const { return succeeded_; }
  uint64_t received() const { return received_; }
  bool has_failed() const { return has_failed_; }
  /// The peer waits for a response of this end, and for nothing else.
  bool owes_response() const;
  /// Nothing is outstanding, or nothing that happens to it counts any more.
  bool is_idle() const { return process_.is_dead() || completed_ == sent_.size(); }
  bool is_disturbed() const { return is_disturbed_ || process_.is_disturbed(); }
  /// For the end of a run: everything has arrived, unless something was disturbed.
  void check_at_the_end();
  std::string describe() const;

  void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) override;
  std::byte* reach(uint32_t, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) override;
  void complete_receive(const core::Inbound& message, WcStatus status) override;
  void refuse(std::optional<EventType> event) override;

 private:
  static constexpr uint64_t kBase = 0x100000;
  static constexpr uint32_t kKey = 0x1234;
  static constexpr uint64_t kConstantBytes = 8192;
  static constexpr uint64_t kWords = 4;
  static constexpr uint64_t kWritesAt = kConstantBytes + kWords * 8;
  static constexpr uint64_t kWriteBytes = 16 << 10;
  static constexpr uint64_t kMaxLength = 6000;
  static constexpr uint32_t kQueue = 32;

  struct Sent {
    Opcode opcode = Opcode::kSend;
    uint32_t length = 0;
    uint32_t immediate = 0;
    uint64_t offset = 0;           ///< in the peer's memory
    std::vector<std::byte> bytes;  ///< what is sent, or must be found
    std::vector<std::byte> result;
    bool has_receive() const { return opcode != Opcode::kRdmaWrite && !is_answered(); }
    bool is_write() const { return opcode == Opcode::kRdmaWrite || opcode == Opcode::kRdmaWriteWithImm; }
    bool is_answered() const { return opcode == Opcode::kRdmaRead || core::is_atomic(opcode); }
  };

  bool is_reliable() const { return type() == QpType::kRc; }
  void choose_operation(Sent& sent, SendWr& wr);
  void choose_atomic(Sent& sent, SendWr& wr);
  void check_success(const Sent& sent, size_t index);
  /// True if these bytes have been written to the peer's memory.
  bool is_written(const Sent& sent) const;
  /// The queue pair has failed, and the core's service thread stops it soon.
  void stop_soon();
  uint64_t receives_before(size_t index) const;

  ConnectionEnd* peer_ = nullptr;
  std::optional<ConnectedEndpoint> endpoint_;
  std::vector<std::byte> memory_;
  std::deque<Sent> sent_;
  uint64_t completed_ = 0;
  uint64_t succeeded_ = 0;
  uint64_t writes_at_ = 0;
  std::array<uint64_t, kWords> words_{};  ///< of the peer's memory, when all that was sent is done
  size_t next_ = 0;                       ///< the peer's message that may arrive next
  uint64_t received_ = 0;
  bool has_failed_ = false;
  bool is_disturbed_ = false;
  bool is_destroyed_ = false;
  bool stops_ = false;
};

/// A UD queue pair that sends to and receives from others.
class DatagramEnd final : public CoreSide {
 public:
  DatagramEnd(Process& process, uint32_t index);
  /// Makes the queue pair. In the process.
  void open();
  void send(const DatagramEnd& to);
  /// Sends a management datagram to the other end's process.
  void send_mad(const DatagramEnd& to);
  uint64_t received() const { return received_; }

  void complete_send(const SendWr&, uint32_t, WcStatus, uint64_t) override {}
  void complete_receive(const core::Inbound& message, WcStatus status) override;
  void refuse(std::optional<EventType>) override { fault("a datagram was refused"); }

 private:
  static constexpr uint32_t kQkey = 0x77;
  struct Mad {
    uint32_t sender;
    uint32_t number;
  };
  void take_mad(const core::MadDatagram& datagram);
  /// The numbers of a sender grow.
  void check_order(std::map<uint32_t, uint32_t>& next, uint32_t sender, uint32_t number);

  std::optional<DatagramEndpoint> endpoint_;
  uint32_t sent_ = 0;
  uint32_t mads_ = 0;
  std::map<uint32_t, uint32_t> next_;  ///< by the sender: the least number that may come
  std::map<uint32_t, uint32_t> next_mads_;
  uint64_t received_ = 0;
};

}  // namespace nupa::pool::sim
