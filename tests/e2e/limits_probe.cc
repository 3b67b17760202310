// SPDX-License-Identifier: Apache-2.0
/// A plain verbs program that lives on when a call fails: opens the device, makes objects, registers memory, writes
/// from one queue pair to another, and says after each try which call failed and how.
///   limits_probe BYTES            one try
///   limits_probe BYTES maps       tries with no mapping left to the process, then with ever more of them
///   limits_probe BYTES opened     the same, with the device opened before
///   limits_probe BYTES then LINE  one try, with the shell's LINE run between opening the device and everything else
#include <infiniband/verbs.h>

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kPage = 4096;

struct Objects {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_qp* qp[2] = {};
};

bool failed(const char* call, int error) {
  std::printf("%s: errno %d (%s)\n", call, error, std::strerror(error));
  return false;
}

bool connect(ibv_qp* qp, const ibv_gid& gid, uint32_t peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
    return failed("modify INIT", error);
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = peer;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = gid;
  attr.ah_attr.grh.sgid_index = 1;
  attr.ah_attr.port_num = 1;
  if (int error = ibv_modify_qp(qp, &attr,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
    return failed("modify RTR", error);
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  if (int error = ibv_modify_qp(qp, &attr,
                                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                    IBV_QP_MAX_QP_RD_ATOMIC))
    return failed("modify RTS", error);
  return true;
}

bool write_across(const Objects& o, char* buffer, size_t half) {
  std::memset(buffer, 'x', half);
  ibv_sge piece{reinterpret_cast<uint64_t>(buffer), static_cast<uint32_t>(half), o.mr->lkey};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(buffer) + half;
  request.wr.rdma.rkey = o.mr->rkey;
  ibv_send_wr* bad = nullptr;
  if (int error = ibv_post_send(o.qp[0], &request, &bad)) return failed("post", error);
  ibv_wc wc{};
  while (ibv_poll_cq(o.cq, 1, &wc) == 0) {
  }
  if (wc.status != IBV_WC_SUCCESS) return failed(ibv_wc_status_str(wc.status), ENOMEM);
  return std::memcmp(buffer, buffer + half, half) == 0 || failed("data", EIO);
}

bool open_device(Objects& o) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (devices == nullptr) return failed("ibv_get_device_list", errno);
  if (count > 0) o.context = ibv_open_device(devices[0]);
  const int open_error = errno;
  ibv_free_device_list(devices);
  return o.context != nullptr || failed("ibv_open_device", open_error);
}

bool make(Objects& o, char* buffer, size_t bytes, int entries) {
  if ((o.pd = ibv_alloc_pd(o.context)) == nullptr) return failed("ibv_alloc_pd", errno);
  if ((o.channel = ibv_create_comp_channel(o.context)) == nullptr) return failed("ibv_create_comp_channel", errno);
  if ((o.cq = ibv_create_cq(o.context, entries, nullptr, o.channel, 0)) == nullptr)
    return failed("ibv_create_cq", errno);
  ibv_srq_init_attr srq{};
  srq.attr.max_wr = 1024;
  srq.attr.max_sge = 4;
  if ((o.srq = ibv_create_srq(o.pd, &srq)) == nullptr) return failed("ibv_create_srq", errno);
  o.mr = ibv_reg_mr(o.pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (o.mr == nullptr) return failed("ibv_reg_mr", errno);
  for (ibv_qp*& qp : o.qp) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = o.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = init.cap.max_recv_wr = 1024;
    init.cap.max_send_sge = init.cap.max_recv_sge = 2;
    if ((qp = ibv_create_qp(o.pd, &init)) == nullptr) return failed("ibv_create_qp", errno);
  }
  ibv_gid gid;
  if (ibv_query_gid(o.context, 1, 1, &gid) != 0) return failed("ibv_query_gid", errno);
  return connect(o.qp[0], gid, o.qp[1]->qp_num) && connect(o.qp[1], gid, o.qp[0]->qp_num) &&
         write_across(o, buffer, bytes / 2);
}

/// Everything that was made goes without complaint, whatever failed before.
bool unmake(const Objects& o) {
  bool good = true;
  const auto check = [&](const char* call, int status) {
    if (status != 0) good = failed(call, status);
  };
  for (ibv_qp* qp : o.qp)
    if (qp != nullptr) check("ibv_destroy_qp", ibv_destroy_qp(qp));
  if (o.mr != nullptr) check("ibv_dereg_mr", ibv_dereg_mr(o.mr));
  if (o.srq != nullptr) check("ibv_destroy_srq", ibv_destroy_srq(o.srq));
  if (o.cq != nullptr) check("ibv_destroy_cq", ibv_destroy_cq(o.cq));
  if (o.channel != nullptr) check("ibv_destroy_comp_channel", ibv_destroy_comp_channel(o.channel));
  if (o.pd != nullptr) check("ibv_dealloc_pd", ibv_dealloc_pd(o.pd));
  if (o.context != nullptr) check("ibv_close_device", ibv_close_device(o.context));
  return good;
}

bool attempt(char* buffer, size_t bytes, ibv_context* opened = nullptr, int entries = 4096) {
  Objects objects;
  objects.context = opened;
  const bool made = (opened != nullptr || open_device(objects)) && make(objects, buffer, bytes, entries);
  if (opened != nullptr) objects.context = nullptr;
  if (!unmake(objects)) std::printf("cannot take down\n");
  if (made) std::printf("all worked\n");
  return made;
}

/// A part of the address space, cut into mappings of one page until the process may have no more.
class Area {
 public:
  Area() : start_(static_cast<char*>(mmap(nullptr, kPages * kPage, PROT_NONE, kKind, -1, 0))) {}
  /// False: no limit was met.
  bool use_up_mappings() {
    if (start_ == MAP_FAILED) return false;
    for (end_ = 1; end_ < kPages; end_ += 2)
      if (mprotect(start_ + end_ * kPage, kPage, PROT_READ) != 0) break;
    // What lies behind is one mapping more.
    return end_ < kPages && munmap(start_ + end_ * kPage, (kPages - end_) * kPage) == 0 && fill_last();
  }
  /// Gives one mapping back.
  bool give_back() { return munmap(start_ + --end_ * kPage, kPage) == 0; }
  void give_back_all() { munmap(start_, end_ * kPage); }

 private:
  static constexpr size_t kPages = size_t{1} << 21;
  static constexpr int kKind = MAP_PRIVATE | MAP_ANONYMOUS;
  /// Takes what use_up_mappings() gave back, page by page, beside each other and of protection by turns.
  bool fill_last() {
    for (int protection = PROT_READ; end_ < kPages; protection ^= PROT_READ, ++end_)
      if (mmap(start_ + end_ * kPage, kPage, protection, kKind | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) return true;
    return false;
  }
  char* start_;
  size_t end_ = 0;  ///< pages
};

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 0;
  if (bytes < 2 * kPage) return std::fputs("usage: limits_probe BYTES [maps]\n", stderr), 2;
  void* buffer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) return failed("the program's own buffer", errno), 3;
  if (argc < 3) return attempt(static_cast<char*>(buffer), bytes) ? 0 : 1;

  Objects opened;
  if (std::strcmp(argv[2], "maps") != 0 && !open_device(opened)) return 3;
  if (argc > 3) {
    if (std::system(argv[3]) != 0) return 77;
    return attempt(static_cast<char*>(buffer), bytes, opened.context) ? 0 : 1;
  }
  Area area;
  if (!area.use_up_mappings()) return std::puts("no limit of mappings here"), 77;
  constexpr int kTries = 40;
  constexpr int kEntries = 2048;  // more with each try, so that each needs memory that was not mapped before
  for (int free = 0; free < kTries; ++free) {
    std::printf("free %d: ", free);
    attempt(static_cast<char*>(buffer), bytes, opened.context, kEntries * (free + 1));
    if (!area.give_back()) return failed("giving back", errno), 3;
  }
  area.give_back_all();
  std::printf("free all: ");
  const bool good = attempt(static_cast<char*>(buffer), bytes, opened.context);
  return good && unmake(opened) ? 0 : 1;
}
