// SPDX-License-Identifier: Apache-2.0
#include "core/srq.h"

#include <cerrno>

#include "base/reason.h"
#include "base/log.h"
#include "core/device_attr.h"

namespace nupa::core {

Srq::Srq(DeviceImpl& device, Pd& pd, uint32_t index, const SrqOptions& options)
    : device_(device), pd_(pd), index_(index), options_(options), shared_(&device.process().tables().srq[index]) {}

int Srq::open() {
  Process& process = device_.process();
  auto queue = ReceiveQueue::create(process.ring_memory(), process.tag(), shared_->recv, options_.max_wr,
                                    options_.max_sge, pd_.handle());
  if (!queue) {
    process.objects().srqs().numbers().give_back(index_);
    return queue.error().code();
  }
  queue_ = std::move(*queue);
  shared_->number = shm::number_of(process.slot(), index_);
  shared_->type = static_cast<uint32_t>(options_.type);
  if (options_.type == SrqType::kXrc) {
    cq_ = static_cast<CompletionSink*>(options_.cq);
    xrcd_ = static_cast<Xrcd*>(options_.xrcd);
    shared_->cq = cq_->index();
    shared_->xrcd = xrcd_->identity();
    cq_->users.add();
    xrcd_->users.add();
  }
  shared_->recv.limit.store(options_.limit);
  shared_->in_use.store(1);
  pd_.users.add();
  device_.users.add();
  process.objects().srqs().enter(*this, index_);
  open_ = true;
  return 0;
}

Srq::~Srq() {
  if (open_ && close() != 0) NUPA_ERROR("shared receive queue %u deleted while in use", index_);
}

int Srq::close() {
  if (users.any()) return base::reject(EBUSY, "queue pairs use the shared receive queue");
  open_ = false;
  if (Process& process = device_.process(); process.is_here()) {
    process.objects().srqs().leave(index_);
    shared_->in_use.store(0);
    quiesce(process.node());
    queue_.reset();
    device_.events().forget(this);
    process.objects().srqs().numbers().give_back(index_);
  } else {
    [[maybe_unused]] const auto* parents = queue_.release();
  }
  if (cq_ != nullptr) cq_->users.drop();
  if (xrcd_ != nullptr) xrcd_->users.drop();
  pd_.users.drop();
  device_.users.drop();
  return 0;
}

int Srq::post_recv(const RecvWr& wr) { return queue_->post(wr); }

int Srq::modify(uint32_t mask, uint32_t max_wr, uint32_t limit) {
  if (!device_.is_here()) return ENODEV;
  if ((mask & ~(srq_attr::kMaxWr | srq_attr::kLimit)) != 0) return EINVAL;
  // Resizing is not advertised (IBV_DEVICE_SRQ_RESIZE): a size up to the present one is accepted.
  if ((mask & srq_attr::kMaxWr) != 0 && max_wr > options_.max_wr)
    return base::reject(EINVAL, "max_wr ", max_wr, " (the queue was created with ", options_.max_wr,
                        ", and cannot grow)");
  if ((mask & srq_attr::kLimit) != 0) {
    if (limit > options_.max_wr) return base::reject(EINVAL, "srq_limit ", limit, " (max_wr is ", options_.max_wr, ")");
    queue_->shared().limit.store(limit);
    if (limit != 0 && queue_->waiting() < limit) {
      uint32_t armed = limit;
      if (queue_->shared().limit.compare_exchange_strong(armed, 0)) on_limit();
    }
  }
  return 0;
}

int Srq::query(uint32_t* max_wr, uint32_t* max_sge, uint32_t* limit) const {
  if (!device_.is_here()) return ENODEV;
  if (max_wr != nullptr) *max_wr = options_.max_wr;
  if (max_sge != nullptr) *max_sge = queue_->max_sge();
  if (limit != nullptr) *limit = shared_->recv.limit.load();
  return 0;
}

uint32_t Srq::number() const { return shared_->number; }

void Srq::on_limit() { device_.events().push({EventType::kSrqLimitReached, nullptr, nullptr, this, 1}); }

void Srq::recover(uint32_t dead_tag, const Completed& completed) {
  queue_->recover(dead_tag, [&](const shm::RecvSlot& slot) {
    const uint64_t completion = slot.completion.load(std::memory_order_acquire);
    const uint32_t claimed_for = slot.claim_qp.load(std::memory_order_relaxed);
    if (completion == 0) return false;
    if (cq_ != nullptr) return cq_->completed(completion);
    return claimed_for != 0 && completed(claimed_for - 1, completion);
  });
}

}  // namespace nupa::core
