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

/// What the endpoint's loop calls for one communicator.
class MailSink {
 public:
  virtual ~MailSink() = default;
  virtual void on_mail(const Mail& mail) = 0;
  /// A completion of a queue pair that completes to the endpoint's queue.
  virtual void on_completion(const WorkCompletion& completion) = 0;
};

/// This process's end of all its communicators: the device, a queue pair for datagrams (the mailbox), and a loop with a
/// thread, which reads the mailbox and on which links are made. All calls from any thread.
class Endpoint {
 public:
  /// The one of this process, made if there is none. A forked child has its own, and its parent's as long as somebody
  /// keeps it; nothing of that one may be used or destroyed there. Errors: those of open_device() and of threads.
  static Result<std::shared_ptr<Endpoint>> acquire();
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// False in a forked child.
  bool is_here() const { return made_.holds(); }
  Device& device() { return *device_; }
  ProtectionDomain& pd() { return *pd_; }
  /// Where links complete that the endpoint's loop looks after.
  CompletionQueue& cq() { return *link_cq_; }
  Allocations& allocations() { return *allocations_; }
  /// To send from any memory of this process.
  uint32_t memory_lkey() const { return memory_->lkey(); }
  const RankCard& card() const { return card_; }
  /// Of card().gid in the port's table.
  uint8_t gid_index() const { return gid_index_; }

  /// EEXIST: a rank of this process has entered it already. The error of a receive that could not be posted: mail may
  /// not come any more.
  int enter(const CommunicatorId& id, uint32_t rank, MailSink* sink);
  /// After this returns the sink is not called any more.
  void leave(const CommunicatorId& id, uint32_t rank);
  /// A datagram; it may be lost.
  void send(const RankCard& to, const Mail& mail);
  /// For timers of communicators. Its handlers may call verbs.
  progress::Loop& loop() { return *loop_; }

 private:
  using Key = std::pair<CommunicatorId, uint32_t>;

  Endpoint() = default;
  Result<void> open();
  Result<void> open_mailbox();
  Result<void> find_address();
  /// `number`: of its buffer. 0 or an errno.
  int post_receive(uint64_t number);
  void note_lost_receive(int error);
  /// What has completed, now and until the channel has its next event.
  void read();
  void read_mailbox();
  void read_links();
  AddressHandle* way_to(const Gid& gid);

  const progress::OfThisProcess made_;
  RankCard card_;
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
  std::atomic<int> mailbox_error_{0};  ///< of the first receive that could not be posted again
  std::unique_ptr<progress::Loop> loop_;
  std::unique_ptr<progress::Loop::Watch> completions_;

  std::mutex sinks_mutex_;  ///< held while a sink is called
  std::map<Key, MailSink*> sinks_;
  std::mutex send_mutex_;
  std::map<decltype(Gid::raw), std::unique_ptr<AddressHandle>> ways_;
};

}  // namespace nupa::ccl
