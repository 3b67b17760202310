// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/seam/deferred_sends.h"
#include "core/seam/endpoint.h"
#include "progress/deadline.h"
#include "progress/pauses.h"

namespace nupa::core {

/// The endpoint of a UD queue pair (IBTA 9.8.3): each request names its destination, and the first transport in order
/// of cost that leads there sends it. A multicast goes by all transports.
class DatagramRouter final : public Endpoint {
 public:
  /// `name`: of the first transport.
  DatagramRouter(QpContext& context, std::string_view name)
      : Endpoint({.copies_in_post = true}), context_(context), name_(name) {}

  /// Before the first request, in order of cost; at least one.
  void add(std::unique_ptr<DatagramSender> sender) { senders_.push_back(std::move(sender)); }

  Posted post(const Request& request) override;
  void start(uint32_t) override { paused_ = false; }
  void set_attributes(const QpAttr&) override {}
  void pause(bool paused) override;
  bool drained() const override { return true; }
  void flush() override;
  void withdraw() override;
  int64_t progress(int64_t now_ns) override;
  void on_process_gone(host::Peer& process) override;
  std::string_view name() const override { return name_; }

 private:
  /// Which transport leads to an address, and until when it is not asked again.
  struct Route {
    Gid gid;
    bool is_global = false;
    DatagramSender* sender = nullptr;
    int64_t valid_until_ns = 0;
  };

  /// Empty: not yet. Nothing behind it may be sent before, and it may not be sent by another call.
  std::optional<WcStatus> send(const Request& request);
  std::optional<WcStatus> send_to_group(const Request& request);
  [[gnu::cold]] Posted put_off(const Request& request);
  void forget_group();
  /// Null: it is not known yet.
  DatagramSender* sender_to(uint32_t qp_num, const AddressVector& vector);

  QpContext& context_;
  const std::string_view name_;
  bool paused_ = false;
  DeferredSends sends_;
  /// Before the oldest of them is tried again: a socket may be full for long, and a process stopped.
  progress::Backoff pauses_{progress::kFirstRetryPauseNs, progress::kLongestRetryPauseNs};
  // Of a multicast that not all transports have sent yet: which one goes on, and the first fault so far.
  size_t next_sender_ = 0;
  WcStatus group_status_ = WcStatus::kSuccess;
  std::vector<std::unique_ptr<DatagramSender>> senders_;
  std::unordered_map<uint32_t, Route> routes_;  ///< by queue pair number, of what the first transport does not lead to
};

}  // namespace nupa::core
