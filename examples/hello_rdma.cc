// SPDX-License-Identifier: Apache-2.0
/// Two processes: the parent writes into the child's memory with one RDMA WRITE. It needs no adapter and no root.
///
/// The example leaves out most error checks to stay short: a program checks each Result before it uses its value.
#include <nupa/connect.h>
#include <nupa/device.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

using namespace nupa;

/// A process sends this to its peer over a pipe. The peer needs it to connect to the queue pair and to write to the
/// memory.
struct Address {
  Gid gid;
  uint32_t qp_num, rkey;
  uint64_t addr;
};

static int play(bool writer, int in, int out) {
  auto device = open_device("nupa0");
  if (!device) return std::fprintf(stderr, "open: %s\n", device.error().what()), 1;
  auto pd = (*device)->alloc_pd();
  auto cq = (*device)->create_cq({.entries = 16});
  static char buffer[16];  // ordinary memory
  auto region = (*device)->reg_mr(**pd, buffer, sizeof buffer, reinterpret_cast<uint64_t>(buffer),
                                  access::kLocalWrite | access::kRemoteWrite);
  auto qp = (*device)->create_qp(
      pd->get(), {.send_cq = cq->get(), .recv_cq = cq->get(), .cap = {.max_send_wr = 1, .max_send_sge = 1}});
  const Gid gid = (*device)->query_gid(1, 1)->gid;
  Address mine{gid, (*qp)->number(), (*region)->rkey(), reinterpret_cast<uint64_t>(buffer)};
  Address peer;
  if (write(out, &mine, sizeof mine) != sizeof mine || read(in, &peer, sizeof peer) != sizeof peer) return 1;

  if (connect(**qp, {.dgid = peer.gid, .dest_qp_num = peer.qp_num, .access_flags = access::kRemoteWrite}) != 0)
    return std::fprintf(stderr, "cannot connect\n"), 1;

  if (!writer) {  // the peer writes to this memory without any call here: poll the last byte
    while (*static_cast<volatile char*>(buffer + 15) == 0) usleep(100);
    return std::printf("received: %.16s\n", buffer), 0;
  }
  std::memcpy(buffer, "hello from NUPA!", sizeof buffer);
  const Sge piece{reinterpret_cast<uint64_t>(buffer), sizeof buffer, (*region)->lkey()};
  const SendWr request{.sg_list = &piece,
                       .num_sge = 1,
                       .opcode = Opcode::kRdmaWrite,
                       .flags = send_flag::kSignaled,
                       .rkey = peer.rkey,
                       .remote_addr = peer.addr};
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
