// SPDX-License-Identifier: Apache-2.0
/// One process, two queue pairs of device nupa0: an RDMA WRITE from one to the other. Built by run_install.py as a
/// user's program is, against what was installed.
#include <nupa/device.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace nupa;

static int connect(QueuePair& qp, const Gid& gid, uint32_t peer) {
  QpAttr attr;
  attr.access_flags = access::kRemoteWrite;
  attr.av.dgid = gid;
  attr.av.sgid_index = 1;
  attr.av.is_global = true;
  attr.path_mtu = Mtu::k4096;
  attr.dest_qp_num = peer;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  using namespace qp_attr;
  attr.state = QpState::kInit;
  if (int error = qp.modify(attr, kState | kPkeyIndex | kPort | kAccessFlags); error != 0) return error;
  attr.state = QpState::kRtr;
  constexpr uint32_t kToRtr = kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer;
  if (int error = qp.modify(attr, kToRtr); error != 0) return error;
  attr.state = QpState::kRts;
  return qp.modify(attr, kState | kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxQpRdAtomic);
}

int main() {
  bool found = false;
  for (const DeviceName& device : list_devices()) found = found || device.name == "nupa0";
  if (!found) return std::puts("no device nupa0"), 1;
  auto device = open_device("nupa0");
  if (!device) return std::printf("open_device: %s\n", device.error().what()), 1;
  auto pd = (*device)->alloc_pd();
  auto cq = (*device)->create_cq({.entries = 16});
  if (!pd || !cq) return std::puts("no protection domain or completion queue"), 1;
  constexpr size_t kBytes = 8192;
  constexpr size_t kHalf = kBytes / 2;
  char* buffer = static_cast<char*>(std::aligned_alloc(4096, kBytes));
  std::memset(buffer, 0, kBytes);
  auto region = (*device)->reg_mr(**pd, buffer, kBytes, reinterpret_cast<uint64_t>(buffer),
                                  access::kLocalWrite | access::kRemoteWrite);
  if (!region) return std::printf("reg_mr: %s\n", region.error().what()), 1;
  QpOptions options;
  options.send_cq = options.recv_cq = cq->get();
  options.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  auto one = (*device)->create_qp(pd->get(), options);
  auto other = (*device)->create_qp(pd->get(), options);
  auto gid = (*device)->query_gid(1, 1);
  if (!one || !other || !gid) return std::puts("no queue pairs or address"), 1;
  if (connect(**one, gid->gid, (*other)->number()) != 0 || connect(**other, gid->gid, (*one)->number()) != 0)
    return std::puts("cannot connect"), 1;

  std::strcpy(buffer, "written");
  const Sge piece{reinterpret_cast<uint64_t>(buffer), sizeof "written", (*region)->lkey()};
  SendWr request;
  request.opcode = Opcode::kRdmaWrite;
  request.flags = send_flag::kSignaled;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.rkey = (*region)->rkey();
  request.remote_addr = reinterpret_cast<uint64_t>(buffer + kHalf);
  if ((*one)->post_send(request) != 0) return std::puts("post_send"), 1;
  WorkCompletion completion;
  while ((*cq)->poll(&completion, 1) == 0) {
  }
  std::printf("status %d, memory: %s\n", static_cast<int>(completion.status), buffer + kHalf);
  return completion.status == WcStatus::kSuccess && std::strcmp(buffer + kHalf, "written") == 0 ? 0 : 1;
}
