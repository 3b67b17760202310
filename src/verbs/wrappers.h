// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The objects behind the structures of the verbs ABI. Each contains the ABI's part at a fixed place, usually at its
/// beginning, so that a cast turns the program's pointer into the core's object.

#include <infiniband/verbs.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#include <nupa/device.h>
#include <nupa/reason.h>

#include "progress/lifecycle.h"
#include "verbs/later_flush.h"

#include <endian.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <vector>

#define NUPA_VERBS extern "C" __attribute__((visibility("default")))

namespace nupa::verbs {

/// Providers' helper libraries read their table directly behind ibv_device. They find zeros and ignore the device.
struct VDevice {
  ibv_device device;
  char reserved[512];
  int index;
  std::atomic<uint64_t> node_guid;  ///< as of the last device list; network byte order
};

struct VPd;
struct VMr;
struct VDm;

/// One core device, with the objects that another context on it may import by number.
struct Opened {
  const progress::OfThisProcess made{};
  std::unique_ptr<Device> core;
  ibv_device* device = nullptr;
  std::mutex mutex;
  std::map<uint32_t, VPd*> pds;
  std::map<uint32_t, VMr*> mrs;
  std::map<uint32_t, VDm*> dms;
};

struct VContext {
  verbs_context verbs;  ///< the program's ibv_context is the last member of this structure
  std::shared_ptr<Opened> opened;
};

struct VPd {
  ibv_pd pd;
  ProtectionDomain* core;
  VPd* original = nullptr;       ///< the protection domain behind a parent domain or an imported one
  std::atomic<int> children{0};  ///< parent domains and imported domains on it
  std::atomic<int> objects{0};   ///< objects made with it; the core does not distinguish those of a parent domain
};

struct VTd {
  ibv_td td;
  std::atomic<int> users{0};
};

struct VParentPd : VPd {
  VTd* td = nullptr;
};

struct VMr {
  ibv_mr mr;
  MemoryRegion* core;
  bool imported = false;
};

struct VMw {
  ibv_mw mw;
  MemoryWindow* core;
};

struct VDm {
  ibv_dm dm;
  DeviceMemory* core;
  bool imported = false;
};

struct VAh {
  ibv_ah ah;
  AddressHandle* core;
};

struct VXrcd {
  ibv_xrcd xrcd;
  XrcDomain* core;
};

/// The memory of a channel is never freed. A thread of the program may enter ibv_get_cq_event() after another thread
/// has destroyed the channel, and must not read the memory of another object.
struct VChannel {
  static constexpr uint32_t kDestroyed = 1;
  static constexpr uint32_t kReader = 2;

  ibv_comp_channel channel{};
  CompletionChannel* core = nullptr;
  std::atomic<uint32_t> state{0};  ///< kReader for each thread in ibv_get_cq_event(), plus kDestroyed
  VChannel* next_spare = nullptr;
};

struct VCq {
  ibv_cq_ex ex;
  CompletionQueue* core;
  WorkCompletionEx current;      ///< valid between start_poll and end_poll
  std::mutex polling;            ///< held from a successful start_poll to end_poll
  bool single_threaded = false;  ///< promised by the program: `polling` is not taken
  uint64_t clock_khz = 0;
  uint32_t async_delivered = 0;  ///< guarded by Opened::mutex, as in the types below
};

struct VSrq {
  ibv_srq srq;
  SharedReceiveQueue* core;
  uint32_t async_delivered = 0;
};

/// Requests staged by the ibv_wr_* builder until ibv_wr_complete.
struct Builder {
  struct Staged {
    SendWr wr;
    size_t first_sge = 0;
    size_t inline_offset = 0;  ///< valid with send_flag::kInline
    bool addressed = false;    ///< the datagram's address or the number of the shared receive queue was set
  };
  std::mutex mutex;
  std::vector<Staged> staged;
  std::vector<Sge> list;
  std::vector<std::byte> inline_data;
  Staged* last = nullptr;  ///< the request that the setters change; null: no request yet
  Staged spare;            ///< used for a request that there is no memory for
  int error = 0;           ///< the first fault since wr_start
};

/// A post reads only the first cache line: with a thousand queue pairs in turn each line counts.
struct alignas(64) VQp {
  VQp() = default;
  ~VQp() { delete builder; }
  VQp(const VQp&) = delete;
  VQp& operator=(const VQp&) = delete;

  Builder* builder = nullptr;  ///< owned; a unique_ptr has no standard layout with each compiler
  uint32_t max_inline = 0;
  uint32_t max_sge = 0;
  uint32_t async_delivered = 0;
  ibv_qp_type type = IBV_QPT_RC;
  QueuePair* core = nullptr;
  ibv_qp_ex ex{};
  WrFlush behind = nullptr;  ///< see wr_flush_of()
};
static_assert(offsetof(VQp, behind) == offsetof(VQp, ex) + sizeof(ibv_qp_ex));
static_assert(std::is_standard_layout_v<VQp>);

inline VContext* context_of(ibv_context* context) {
  auto* verbs = reinterpret_cast<char*>(context) - offsetof(verbs_context, context);
  return reinterpret_cast<VContext*>(verbs);
}
inline Device& core_of(ibv_context* context) { return *context_of(context)->opened->core; }
/// True in a forked child for its parent's contexts: threads of the parent may have held the locks of all their
/// objects.
inline bool is_inherited(ibv_context* context) { return !context_of(context)->opened->made.holds(); }
inline VPd* of(ibv_pd* pd) { return reinterpret_cast<VPd*>(pd); }
inline VMr* of(ibv_mr* mr) { return reinterpret_cast<VMr*>(mr); }
inline VMw* of(ibv_mw* mw) { return reinterpret_cast<VMw*>(mw); }
inline VDm* of(ibv_dm* dm) { return reinterpret_cast<VDm*>(dm); }
inline VAh* of(ibv_ah* ah) { return reinterpret_cast<VAh*>(ah); }
inline VXrcd* of(ibv_xrcd* xrcd) { return reinterpret_cast<VXrcd*>(xrcd); }
inline VChannel* of(ibv_comp_channel* channel) { return reinterpret_cast<VChannel*>(channel); }
inline VCq* of(ibv_cq* cq) { return reinterpret_cast<VCq*>(cq); }
inline VCq* of(ibv_cq_ex* cq) { return reinterpret_cast<VCq*>(cq); }
inline VSrq* of(ibv_srq* srq) { return reinterpret_cast<VSrq*>(srq); }
inline VQp* of(ibv_qp* qp) { return reinterpret_cast<VQp*>(reinterpret_cast<char*>(qp) - offsetof(VQp, ex)); }
inline VQp* of(ibv_qp_ex* qp) { return of(&qp->qp_base); }

/// Reads an enumeration as a number, since a C program may store any number in it. The core checks the value.
template <class Enum>
uint32_t number_in(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(uint32_t));
  uint32_t number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

/// Counts an object of the domain. Null: an object without a domain (XRC_RECV).
inline void use(ibv_pd* pd) {
  if (pd != nullptr) ++of(pd)->objects;
}
inline void leave(ibv_pd* pd) {
  if (pd != nullptr) --of(pd)->objects;
}

/// Sets errno and returns null, like every verb that fails to make an object. `call`: the verb, with or without "ibv_".
/// Both functions print the reason if that is wanted.
std::nullptr_t refuse(int error, const char* call = __builtin_FUNCTION());
std::nullptr_t refuse(const Error& error, const char* call = __builtin_FUNCTION());
/// Prints why the verb returns this error. Returns it.
int explained(int error, const char* call);
int explained(const Error& error, const char* call);
/// Sets errno and returns it, like the verbs that return an error.
inline int answer(int error, const char* call = __builtin_FUNCTION()) {
  if (__builtin_expect(error != 0, 0)) errno = explained(error, call);
  return error;
}
inline int answer(const Error& error, const char* call = __builtin_FUNCTION()) {
  return errno = explained(error, call);
}

/// Closes and frees a queue. `shown` is its part with the mutex and the condition. A thread of the program may still
/// handle an event of the queue, so the call waits until all events are acknowledged.
///
/// It calls acknowledged(n) under the mutex until that returns true; n is the number of asynchronous events that were
/// handed out. A forked child has no such thread.
template <class Made, class Shown, class Acknowledged>
int destroy(Made* made, Shown* shown, Acknowledged&& acknowledged, const char* call = __builtin_FUNCTION()) {
  if (const int error = made->core->close(); error != 0) return answer(error, call);
  if (!is_inherited(shown->context)) {
    const uint32_t async_delivered = [&] {
      std::lock_guard lock(context_of(shown->context)->opened->mutex);
      return made->async_delivered;
    }();
    pthread_mutex_lock(&shown->mutex);
    while (!acknowledged(async_delivered)) pthread_cond_wait(&shown->cond, &shown->mutex);
    pthread_mutex_unlock(&shown->mutex);
    pthread_cond_destroy(&shown->cond);
    pthread_mutex_destroy(&shown->mutex);
  }
  delete made->core;
  delete made;
  return 0;
}

// Scatter/gather lists are passed on without a copy.
static_assert(sizeof(Sge) == sizeof(ibv_sge) && offsetof(Sge, addr) == offsetof(ibv_sge, addr) &&
              offsetof(Sge, length) == offsetof(ibv_sge, length) && offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));

/// The bytes that atomic operations access.
constexpr uint32_t kAtomicBytes = 8;

/// The flags of a send. IBV_SEND_IP_CSUM is not among them, because no checksum offload is advertised.
/// Neither is send_flag::kAnyLength, which only nupa_verbs_post_inline() sets.
constexpr unsigned int kSendFlags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// Turns a negative count, or a count without a list, into one that no queue allows: EINVAL.
inline uint32_t list_length(const ibv_sge* list, int count) {
  return list == nullptr && count != 0 ? UINT32_MAX : static_cast<uint32_t>(count);
}
inline RecvWr convert(const ibv_recv_wr& wr) {
  return {wr.wr_id, reinterpret_cast<const Sge*>(wr.sg_list), list_length(wr.sg_list, wr.num_sge)};
}

AddressVector to_core(const ibv_ah_attr& attr);
void from_core(const AddressVector& vector, ibv_ah_attr* attr);

/// Removes an object that was closed from the objects that may be imported.
template <class Made>
void forget_number(ibv_context* context, std::map<uint32_t, Made*> Opened::*kind, uint32_t handle) {
  if (is_inherited(context)) return;
  Opened& opened = *context_of(context)->opened;
  std::lock_guard lock(opened.mutex);
  (opened.*kind).erase(handle);
}

/// Fills the verbs_context's table of operations.
void set_operations(verbs_context* verbs);

// The operations in that table; the file of each object defines its part.
int query_port(ibv_context* context, uint8_t port_num, ibv_port_attr* attr, size_t length);
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    size_t size);
int query_rt_values(ibv_context* context, ibv_values_ex* values);
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attr);
int dealloc_td(ibv_td* td);
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr);
ibv_mr* alloc_null_mr(ibv_pd* pd);
ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, uint64_t offset, size_t length, unsigned int access_flags);
ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr);
int free_dm(ibv_dm* dm);
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* list, uint32_t count);
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
int dealloc_mw(ibv_mw* mw);
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr);
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr);
int get_srq_num(ibv_srq* srq, uint32_t* number);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr);
int close_xrcd(ibv_xrcd* xrcd);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr);
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
/// Returns whether the builder has every requested operation for a queue pair of this type.
bool can_build(uint32_t type, uint64_t send_ops_flags);
/// Sets the builder's functions for these operations.
void set_builder(VQp* qp, uint64_t send_ops_flags);
/// Sets the functions that poll completions one by one and read the requested fields.
void set_readers(VCq* cq, uint64_t wc_flags);

}  // namespace nupa::verbs
