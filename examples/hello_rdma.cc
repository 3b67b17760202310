/// Two processes: the parent writes into the child's memory with one RDMA WRITE. No adapter, no root.
#include <nupa/device.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

using namespace nupa;

/// What the two ends tell each other over a pipe.
struct Address {
  Gid gid;
  uint32_t qp_num, rkey;
  uint64_t addr;
};

static int play(bool writer, int in, int out) {
  auto device = open_device("nupa0");
  if (!device) return std::fprintf(stderr, "open: %s\n", device.error().what), 1;
  auto pd = (*device)->alloc_pd();
  auto cq = (*device)->create_cq({.entries = 16});
  char* buffer = static_cast<char*>(std::aligned_alloc(4096, 4096));
  auto region = (*device)->reg_mr(**pd, buffer, 4096, reinterpret_cast<uint64_t>(buffer),
                                  access::kLocalWrite | access::kRemoteWrite);
  QpOptions options;
  options.send_cq = options.recv_cq = cq->get();
  options.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  auto qp = (*device)->create_qp(pd->get(), options);
  const Gid gid = (*device)->query_gid(1, 1)->gid;
  Address mine{gid, (*qp)->number(), (*region)->rkey(), reinterpret_cast<uint64_t>(buffer)};
  Address peer;
  if (write(out, &mine, sizeof mine) != sizeof mine || read(in, &peer, sizeof peer) != sizeof peer) return 1;

  QpAttr attr;
  attr.access_flags = access::kRemoteWrite;
  attr.av.dgid = peer.gid;
  attr.av.sgid_index = 1;
  attr.av.is_global = true;
  attr.path_mtu = 5;
  attr.dest_qp_num = peer.qp_num;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  using namespace qp_attr;
  attr.state = QpState::kInit;
  int bad = (*qp)->modify(attr, kState | kPkeyIndex | kPort | kAccessFlags);
  attr.state = QpState::kRtr;
  bad |= (*qp)->modify(attr, kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer);
  attr.state = QpState::kRts;
  bad |= (*qp)->modify(attr, kState | kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxQpRdAtomic);
  if (bad != 0) return std::fprintf(stderr, "cannot connect\n"), 1;

  if (!writer) {  // the other end's processor does the work: just look at the memory
    while (*static_cast<volatile char*>(buffer + 15) == 0) usleep(100);
    return std::printf("received: %s\n", buffer), 0;
  }
  std::snprintf(buffer, 16, "hello from NUPA");
  buffer[15] = '!';
  const Sge piece{reinterpret_cast<uint64_t>(buffer), 16, (*region)->lkey()};
  SendWr request;
  request.opcode = Opcode::kRdmaWrite;
  request.flags = send_flag::kSignaled;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.rkey = peer.rkey;
  request.remote_addr = peer.addr;
  if ((*qp)->post_send(request) != 0) return 1;
  WorkCompletion completion;
  while ((*cq)->poll(&completion, 1) == 0) {
  }
  return completion.status == WcStatus::kSuccess ? 0 : 1;
}

int main() {
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) return play(false, down[0], up[1]);
  const int status = play(true, up[0], down[1]);
  int child_status = 0;
  waitpid(child, &child_status, 0);
  return status != 0 || child_status != 0;
}
