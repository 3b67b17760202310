// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <unordered_map>
#include <vector>

#include "capture/tap.h"
#include "core/seam/deferred_sends.h"
#include "core/seam/device_entry.h"
#include "core/seam/endpoint.h"
#include "progress/deadline.h"
#include "progress/pauses.h"

namespace nupa::core {

/// The endpoint of a UD queue pair (IBTA 9.8.3). Each request names its destination; the first transport in order of
/// cost that reaches it sends the request. All transports send a multicast.
class DatagramRouter final : public Endpoint {
 public:
  /// `name`: the name of the first transport.
  DatagramRouter(QpContext& context, std::string_view name)
      : Endpoint({.copies_in_post = true}), context_(context), name_(name) {}

  /// Called before the first request, in order of cost, at least once.
  void add(std::unique_ptr<DatagramSender> sender) { senders_.push_back(std::move(sender)); }
  /// The datagrams of the sender that was added last are recorded for captures. `transport`: its name, which stays.
  /// `device` outlives the router.
  void record_last(const DeviceEntry& device, std::string_view transport) {
    recorded_.push_back({senders_.back().get(), &device, transport});
  }

  Posted post(const Request& request) override;
  void start(uint32_t) override { paused_ = false; }
  void set_attributes(const QpAttr&) override {}
  void pause(bool paused) override;
  bool drained() const override { return true; }
  void flush() override;
  void withdraw() override;
  int64_t progress(int64_t now_ns) override;
  void on_process_exit(host::Peer& process) override;
  std::string_view name() const override { return name_; }

 private:
  /// The transport that reaches a destination, and the time until which it is not looked up again.
  struct Route {
    Gid gid;
    bool is_global = false;
    DatagramSender* sender = nullptr;
    int64_t valid_until_ns = 0;
  };

  /// Empty: not sent yet. No later request may be sent first, and only the retry of this request may continue it.
  std::optional<WcStatus> send_datagram(const Request& request);
  std::optional<WcStatus> send_to_group(const Request& request);
  std::optional<WcStatus> send_by(DatagramSender& sender, const Request& request) {
    const std::optional<WcStatus> sent = sender.send(request);
    if (capture::is_on() && sent == WcStatus::kSuccess) [[unlikely]]
      record(sender, request);
    return sent;
  }
  [[gnu::noinline, gnu::cold]] void record(const DatagramSender& sender, const Request& request);
  [[gnu::cold]] Posted put_off(const Request& request);
  void forget_group();
  /// Null: not known yet.
  DatagramSender* sender_to(uint32_t qp_num, const AddressVector& vector);

  QpContext& context_;
  const std::string_view name_;
  bool paused_ = false;
  DeferredSends sends_;
  /// The pauses before the oldest request is tried again: a socket may stay full for long, or a process stay stopped.
  progress::Backoff pauses_{progress::kFirstRetryPauseNs, progress::kLongestRetryPauseNs};
  // State of a multicast that not all transports have sent yet: the next transport, and the first fault so far.
  size_t next_sender_ = 0;
  WcStatus group_status_ = WcStatus::kSuccess;
  std::vector<std::unique_ptr<DatagramSender>> senders_;
  /// The senders whose transports do not record packets themselves.
  struct Recorded {
    const DatagramSender* sender;
    const DeviceEntry* device;
    std::string_view transport;
  };
  std::vector<Recorded> recorded_;
  uint32_t recorded_psn_ = 0;                   ///< of the next datagram that is recorded
  std::unordered_map<uint32_t, Route> routes_;  ///< by number; without those that the first transport reaches
};

}  // namespace nupa::core
