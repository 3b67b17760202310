// SPDX-License-Identifier: Apache-2.0
/// Completion channels and queues.
#include <unistd.h>

#include <cstring>
#include <utility>

#include "progress/condition.h"
#include "progress/of_process.h"
#include "progress/waiter.h"
#include "verbs/private.h"
#include "verbs/wrappers.h"

namespace nupa::verbs {

// The core fills the program's ibv_wc array directly.
static_assert(sizeof(WorkCompletion) == sizeof(ibv_wc));
static_assert(offsetof(WorkCompletion, wr_id) == offsetof(ibv_wc, wr_id));
static_assert(offsetof(WorkCompletion, status) == offsetof(ibv_wc, status));
static_assert(offsetof(WorkCompletion, opcode) == offsetof(ibv_wc, opcode));
static_assert(offsetof(WorkCompletion, vendor_err) == offsetof(ibv_wc, vendor_err));
static_assert(offsetof(WorkCompletion, byte_len) == offsetof(ibv_wc, byte_len));
static_assert(offsetof(WorkCompletion, imm_data) == offsetof(ibv_wc, imm_data));
static_assert(offsetof(WorkCompletion, qp_num) == offsetof(ibv_wc, qp_num));
static_assert(offsetof(WorkCompletion, src_qp) == offsetof(ibv_wc, src_qp));
static_assert(offsetof(WorkCompletion, wc_flags) == offsetof(ibv_wc, wc_flags));
static_assert(offsetof(WorkCompletion, pkey_index) == offsetof(ibv_wc, pkey_index));
static_assert(offsetof(WorkCompletion, slid) == offsetof(ibv_wc, slid));
static_assert(offsetof(WorkCompletion, sl) == offsetof(ibv_wc, sl));
static_assert(offsetof(WorkCompletion, dlid_path_bits) == offsetof(ibv_wc, dlid_path_bits));

namespace {

VCq* make_cq(ibv_context* context, const CqOptions& wanted, ibv_comp_channel* channel, void* cq_context) try {
  auto* made = new VCq{};
  CqOptions options = wanted;
  options.user_context = made;
  options.channel = channel == nullptr ? nullptr : of(channel)->core;
  auto core = core_of(context).create_cq(options);
  if (!core) {
    delete made;
    return refuse(core.error(), "ibv_create_cq");
  }
  made->core = core->release();
  made->ex.context = context;
  made->ex.channel = channel;
  made->ex.cq_context = cq_context;
  made->ex.handle = made->core->handle();
  made->ex.cqe = static_cast<int>(made->core->entries());
  pthread_mutex_init(&made->ex.mutex, nullptr);
  pthread_cond_init(&made->ex.cond, nullptr);
  if (channel != nullptr) __atomic_fetch_add(&channel->refcnt, 1, __ATOMIC_RELAXED);
  return made;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM, "ibv_create_cq");
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  constexpr uint64_t kKnownFields = uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  constexpr uint32_t kKnownMask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  constexpr uint32_t kKnownFlags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if (context == nullptr || attr == nullptr) return refuse(EINVAL);
  if ((attr->wc_flags & ~kKnownFields) != 0 || (attr->comp_mask & ~kKnownMask) != 0) return refuse(EOPNOTSUPP);
  const uint32_t flags = (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? attr->flags : 0;
  if ((flags & ~kKnownFlags) != 0) return refuse(EOPNOTSUPP);
  if (attr->comp_vector >= static_cast<uint32_t>(context->num_comp_vectors)) return refuse(EINVAL);
  CqOptions options;
  options.entries = attr->cqe;
  options.timestamps =
      (attr->wc_flags & (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)) != 0;
  options.ignore_overrun = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
  VCq* made = make_cq(context, options, attr->channel, attr->cq_context);
  if (made == nullptr) return nullptr;
  made->single_threaded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
  set_readers(made, attr->wc_flags);
  return &made->ex;
}

int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr) {
  if (cq == nullptr || attr == nullptr || (attr->attr_mask & ~IBV_CQ_ATTR_MODERATE) != 0) return answer(EINVAL);
  if ((attr->attr_mask & IBV_CQ_ATTR_MODERATE) == 0) return 0;
  return answer(of(cq)->core->moderate(attr->moderate.cq_count, attr->moderate.cq_period));
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
  return of(cq)->core->poll(reinterpret_cast<WorkCompletion*>(wc), count);
}

int req_notify_cq(ibv_cq* cq, int solicited_only) { return answer(of(cq)->core->arm(solicited_only != 0)); }

namespace {

/// Channels that the program has destroyed.
struct Destroyed {
  std::mutex mutex;
  progress::Condition reader_left;
  VChannel* spare = nullptr;

  static Destroyed& all();
};
progress::RenewedInChildren<Destroyed>& g_destroyed = *new progress::RenewedInChildren<Destroyed>;

Destroyed& Destroyed::all() { return g_destroyed.get(); }

VChannel* take_spare() {
  Destroyed& destroyed = Destroyed::all();
  std::lock_guard lock(destroyed.mutex);
  VChannel* const spare = destroyed.spare;
  if (spare == nullptr) return new VChannel;
  destroyed.spare = spare->next_spare;
  spare->channel = {};
  spare->state = 0;
  return spare;
}

/// Counts a thread that waits for an event. The end of the thread, for instance by pthread_cancel(), counts as well.
class Reading {
 public:
  explicit Reading(VChannel& channel) : channel_(channel) {
    uint32_t state = channel_.state.load();
    do {
      // Some programs exit while one thread is here and another one has destroyed the channel. With the kernel's
      // descriptor the thread keeps waiting, as here. The program would report an error.
      if ((state & VChannel::kDestroyed) != 0) progress::sleep_for_ever();
    } while (!channel_.state.compare_exchange_weak(state, state + VChannel::kReader));
  }
  Reading(const Reading&) = delete;
  ~Reading() {
    if (channel_.state.fetch_sub(VChannel::kReader) != (VChannel::kDestroyed | VChannel::kReader)) return;
    std::lock_guard lock(Destroyed::all().mutex);
    Destroyed::all().reader_left.notify_all();
  }

 private:
  VChannel& channel_;
};

}  // namespace

}  // namespace nupa::verbs

using namespace nupa::verbs;

NUPA_VERBS ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) try {
  if (context == nullptr) return refuse(EINVAL);
  auto core = core_of(context).create_channel();
  if (!core) return refuse(core.error());
  VChannel* const made = take_spare();
  made->core = core->release();
  made->channel.context = context;
  made->channel.fd = made->core->fd();
  return &made->channel;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

NUPA_VERBS int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  if (channel == nullptr) return answer(EINVAL);
  VChannel* made = of(channel);
  if (const int error = made->core->close(); error != 0) return answer(error);
  made->state.fetch_or(VChannel::kDestroyed);
  Destroyed& destroyed = Destroyed::all();
  std::unique_lock lock(destroyed.mutex);
  if (!is_inherited(channel->context))
    destroyed.reader_left.wait(lock, [&] { return made->state.load() == VChannel::kDestroyed; });
  delete made->core;
  made->next_spare = std::exchange(destroyed.spare, made);
  return 0;
}

NUPA_VERBS ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                                 int vector) {
  if (context == nullptr || entries <= 0 || vector < 0 || vector >= context->num_comp_vectors) return refuse(EINVAL);
  nupa::CqOptions options;
  options.entries = static_cast<uint32_t>(entries);
  VCq* made = make_cq(context, options, channel, cq_context);
  return made == nullptr ? nullptr : ibv_cq_ex_to_cq(&made->ex);
}

NUPA_VERBS int ibv_resize_cq(ibv_cq* cq, int entries) try {
  if (cq == nullptr || entries <= 0) return answer(EINVAL);
  const int error = of(cq)->core->resize(static_cast<uint32_t>(entries));
  if (error == 0) cq->cqe = static_cast<int>(of(cq)->core->entries());
  return answer(error);
} catch (const std::bad_alloc&) {
  return answer(ENOMEM);
}

NUPA_VERBS int ibv_destroy_cq(ibv_cq* cq) {
  if (cq == nullptr) return answer(EINVAL);
  VCq* made = of(cq);
  ibv_comp_channel* const channel = cq->channel;
  const int error = destroy(made, cq, [&](uint32_t async_delivered) {
    return cq->comp_events_completed == made->core->events_delivered() && cq->async_events_completed == async_delivered;
  });
  if (error == 0 && channel != nullptr) __atomic_fetch_sub(&channel->refcnt, 1, __ATOMIC_RELAXED);
  return error;
}

int nupa_verbs_signal_descriptor(ibv_comp_channel* channel) { return of(channel)->core->signal_fd(); }

NUPA_VERBS int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  if (channel == nullptr || cq == nullptr || cq_context == nullptr) {
    errno = EINVAL;
    return -1;
  }
  const auto event = [&] {
    const Reading reading(*of(channel));
    return of(channel)->core->wait();
  }();
  if (!event) {
    if (event.error().code() == ECANCELED) nupa::progress::sleep_for_ever();
    errno = event.error().code();
    return -1;
  }
  auto* made = static_cast<VCq*>((*event)->user_context());
  *cq = ibv_cq_ex_to_cq(&made->ex);
  *cq_context = made->ex.cq_context;
  return 0;
}

NUPA_VERBS void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  if (cq == nullptr) return;
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += count;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}
