// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/device.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ccl/connect/peer_info.h"
#include "ccl/connect/mail.h"
#include "ccl/connect/allocations.h"
#include "progress/loop.h"
#include "progress/of_process.h"

namespace nupa::ccl {

/// Callbacks of one communicator. The endpoint's loop calls them.
class MailSink {
 public:
  virtual ~MailSink() = default;
  virtual void on_mail(const Mail& mail) = 0;
  /// A completion in the endpoint's cq(), of a queue pair of any communicator.
  virtual void on_completion(const WorkCompletion& completion) = 0;
};

/// The resources that all communicators of a process share: the device, a queue pair for datagrams (the mailbox), and
/// an event loop with a thread, which reads the mailbox and makes links. Thread-safe.
class Endpoint {
 public:
  /// Returns the endpoint of this process, and makes it if there is none. A forked child gets its own endpoint. It may
  /// still hold that of its parent, but must neither use nor destroy it. Errors: those of open_device() and of threads.
  static Result<std::shared_ptr<Endpoint>> acquire();
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Returns false in a forked child of the process that made it.
  bool is_here() const { return made_.holds(); }
  Device& device() { return *device_; }
  ProtectionDomain& pd() { return *pd_; }
  /// The completion queue of links between ranks that share memory. The endpoint's loop polls it.
  CompletionQueue& cq() { return *link_cq_; }
  Allocations& allocations() { return *allocations_; }
  /// The local key with which any memory of this process can be sent.
  uint32_t memory_lkey() const { return memory_->lkey(); }
  const PeerInfo& peer_info() const { return peer_info_; }
  /// Returns the address of another process for this one: that in the pool if both use the same pool.
  const Gid& address_of(const PeerInfo& other) const;
  /// The index of peer_info().gid in the port's GID table.
  uint8_t gid_index() const { return gid_index_; }

  /// Registers a sink for a rank of a communicator. EEXIST: this process has already registered the rank. Other errors:
  /// a receive of the mailbox could not be posted, so that mail may no longer arrive.
  int enter(const CommunicatorId& id, uint32_t rank, MailSink* sink);
  /// Removes a sink. It is not called after this function has returned.
  void leave(const CommunicatorId& id, uint32_t rank);
  /// Sends a datagram, which may be lost.
  void send(const PeerInfo& to, const Mail& mail);
  /// The event loop, for timers of communicators. Handlers may call verbs.
  progress::Loop& loop() { return *loop_; }

 private:
  using Key = std::pair<CommunicatorId, uint32_t>;

  Endpoint() = default;
  Result<void> open();
  Result<void> open_mailbox();
  Result<void> find_address();
  /// Takes this process's address in the pool, and those of the other hosts.
  Result<void> find_pool(const DeviceName& name);
  /// Posts the receive buffer with this number. Returns 0 or an errno value.
  int post_receive(uint64_t number);
  void note_lost_receive(int error);
  /// Takes all completions, and arms both queues for the next event.
  void read();
  void read_mailbox();
  void read_links();
  AddressHandle* way_to(const Gid& gid);

  const progress::OfThisProcess made_{};
  PeerInfo peer_info_;
  std::vector<Gid> neighbours_;  ///< addresses of the other hosts of the pool
  uint8_t gid_index_ = 1;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
  std::unique_ptr<MemoryRegion> memory_;
  std::unique_ptr<Allocations> allocations_;
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<CompletionQueue> mail_cq_;
  std::unique_ptr<CompletionQueue> link_cq_;
  std::unique_ptr<MemoryRegion> buffers_;
  std::unique_ptr<QueuePair> mailbox_;
  std::atomic<int> mailbox_error_{0};  ///< error of the first receive that could not be posted again
  std::unique_ptr<progress::Loop> loop_;
  std::unique_ptr<progress::Loop::Watch> completions_;

  std::mutex sinks_mutex_;  ///< held while a sink is called
  std::map<Key, MailSink*> sinks_;
  std::mutex send_mutex_;
  std::map<decltype(Gid::raw), std::unique_ptr<AddressHandle>> provider_;
};

}  // namespace nupa::ccl
