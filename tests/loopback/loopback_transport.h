// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A transport between queue pairs of one process. Each request is taken and finished later, by a thread of the
/// transport or by a thread that polls: what a wire does. It stands behind no user's name; it shows that a transport
/// needs nothing of the core but core/seam.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/seam/deferred_sends.h"
#include "core/seam/responder.h"
#include "core/seam/transport.h"

namespace nupa::loopback {

class LoopbackTransport;

/// RC, UC, XRC. One request is under way at a time: the oldest that waits.
class LoopbackEndpoint final : public core::Endpoint {
 public:
  LoopbackEndpoint(LoopbackTransport& transport, core::QpContext& context, const QpAttr& attr);

  core::Posted post(const core::Request& request) override;
  void send() override;
  void start(uint32_t) override { paused_ = false; }
  void set_attributes(const QpAttr& attr) override;
  void pause(bool paused) override;
  bool drained() const override { return sends_.empty() || !sends_.front().begun(); }
  void flush() override;
  void withdraw() override;
  std::string_view name() const override { return "loopback"; }

 private:
  friend class LoopbackTransport;
  /// The oldest request on its way to its target and back.
  struct Message {
    SendWr wr;
    std::vector<std::byte> data;  ///< of a READ: what comes back
    uint64_t length = 0;
    uint64_t operand = 0;
    core::Verdict verdict = core::Verdict::accepted();
    bool answered = false;  ///< false: the target takes no requests now
    uint8_t rnr_timer = 0;
    uint64_t life = 0;  ///< of the endpoint when it was begun
  };
  /// With the send lock: begins the oldest request. False: nothing is to be brought to the target.
  bool begin(int64_t now_ns, Message* message);
  /// With the send lock: handles the answer. Returns when to try again; 0: at once, INT64_MAX: there is nothing.
  int64_t finish(Message& message, int64_t now_ns);
  void end(WcStatus status, uint64_t length);
  bool is_reliable() const { return context_.type() != QpType::kUc; }

  LoopbackTransport& transport_;
  core::QpContext& context_;
  const uint32_t remote_qpn_;
  const uint8_t read_depth_;  ///< of this end, as a target
  core::RetryLimits limits_;
  core::DeferredSends sends_;
  bool paused_ = false;
  bool established_ = false;
  uint64_t life_ = 0;  ///< counts flushes
};

/// UD to queue pairs of this process. Multicasts are another transport's, or members would get each twice.
class LoopbackDatagrams final : public core::DatagramSender {
 public:
  LoopbackDatagrams(LoopbackTransport& transport, const core::DeviceEntry& device, core::QpContext& context);
  Reach leads_to(const AddressVector& vector, uint32_t qp_num) override;
  std::optional<WcStatus> send(const core::Request& request) override;
  void withdraw() override;

 private:
  LoopbackTransport& transport_;
  const std::vector<GidEntry> gids_;
  core::QpContext& context_;
};

class LoopbackTransport final : public core::Transport, public core::Poller {
 public:
  static Result<std::unique_ptr<core::Transport>> create() { return std::make_unique<LoopbackTransport>(); }
  ~LoopbackTransport() override;

  std::string_view name() const override { return "loopback"; }
  Result<void> open(core::ProcessContext& process) override;
  bool reaches(const AddressVector& vector, uint32_t qp_num) override;
  Result<std::unique_ptr<core::Endpoint>> connect(const core::DeviceEntry& device, core::QpContext& context,
                                                  const QpAttr& attr, bool may_lower_mtu) override;
  Result<std::unique_ptr<core::DatagramSender>> datagrams(const core::DeviceEntry& device, core::QpContext& context,
                                                          host::DueEvent& due) override;
  Result<uint32_t> mtu_code(const core::DeviceEntry&) const override { return 5; }
  core::Poller* poller() override { return this; }

  void poll() override;
  void finish_poll() override {}
  void program_sleeps() override {}

 private:
  friend class LoopbackEndpoint;
  friend class LoopbackDatagrams;
  struct Datagram {
    uint32_t to;
    uint32_t qkey;
    core::Inbound inbound;
    std::vector<std::byte> bytes;  ///< with the route header
  };

  /// The endpoint has something to do at `when_ns`. Any thread.
  void schedule(uint32_t qp_num, int64_t when_ns);
  void run();
  /// With the work mutex: does what is due. Returns whether there was something.
  bool work();
  /// One request of the endpoint; when to come again, INT64_MAX: when it calls.
  int64_t serve(LoopbackEndpoint& from, int64_t now_ns);
  void deliver(LoopbackEndpoint::Message& message, LoopbackEndpoint& from);
  static void answer(LoopbackEndpoint::Message& message, LoopbackEndpoint& to);
  bool deliver(Datagram& datagram);

  core::ProcessContext* process_ = nullptr;
  std::mutex work_mutex_;  ///< held by the thread that works, and by whoever takes an endpoint away
  std::unordered_map<uint32_t, LoopbackEndpoint*> endpoints_;  ///< by number; under work_mutex_, as the next
  std::unordered_map<uint32_t, core::QpContext*> datagram_ends_;
  std::mutex queue_mutex_;
  std::condition_variable changed_;
  std::multimap<int64_t, uint32_t> due_;  ///< numbers, by when
  std::deque<Datagram> datagrams_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace nupa::loopback
