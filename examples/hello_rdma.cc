// SPDX-License-Identifier: Apache-2.0
/// Two processes, one RDMA WRITE: the parent writes into the memory of its child. It needs no adapter and no root.
///
///     build/examples/hello_rdma                          shared memory: both processes are on one host
///     NUPA_TRANSPORT=roce build/examples/hello_rdma      the same over RoCEv2 packets
#include <nupa/connect.h>
#include <nupa/device.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

using namespace nupa;

/// The peer needs this to connect to a queue pair (GID and number) and to write to memory (address and rkey).
struct Address {
  Gid gid;
  uint32_t qp_num, rkey;
  uint64_t addr;
};

/// Prints what failed and why. Returns the exit status.
static int fail_with(const char* call, const char* reason) {
  std::fprintf(stderr, "hello_rdma: %s: %s\n", call, reason);
  return 1;
}

/// Polls the completion queue until the one posted request completes. Returns 0, or 1 after a message.
static int wait_for_completion(CompletionQueue& cq, const char* request) {
  WorkCompletion completion;
  int count = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while ((count = cq.poll(&completion, 1)) == 0)
    if (std::chrono::steady_clock::now() > deadline) return fail_with(request, "no completion within 10 s");
  if (count < 0) return fail_with(request, std::strerror(-count));
  if (completion.status == WcStatus::kSuccess) return 0;
  std::fprintf(stderr, "hello_rdma: %s: completion status %u (WcStatus in nupa/types.h)\n", request,
               static_cast<unsigned>(completion.status));
  return 1;
}

/// Runs one side. `peer_socket` leads to the other process.
static int run(bool writer, int peer_socket) {
  // 1. Open the device. A protection domain groups memory and queue pairs. A completion queue reports finished
  // requests.
  auto device = open_device("nupa0");
  if (!device) return fail_with("open_device nupa0", device.error().what());
  auto pd = (*device)->alloc_pd();
  if (!pd) return fail_with("alloc_pd", pd.error().what());
  auto cq = (*device)->create_cq({.entries = 16});
  if (!cq) return fail_with("create_cq", cq.error().what());

  // 2. Register memory. The local key (lkey) is for requests of this process, the remote key (rkey) for the peer's.
  static char buffer[16];  // any memory will do
  const auto addr = reinterpret_cast<uint64_t>(buffer);
  auto mr = (*device)->reg_mr(**pd, buffer, sizeof buffer, addr, access::kLocalWrite | access::kRemoteWrite);
  if (!mr) return fail_with("reg_mr of the buffer", mr.error().what());

  // 3. Create a queue pair of type RC (reliable connection), with room for one send and one receive, and take it from
  //    RESET to INIT. In INIT receives can be posted, and nothing can arrive yet.
  auto qp = (*device)->create_qp(
      pd->get(),
      {.send_cq = cq->get(), .recv_cq = cq->get(), .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}});
  if (!qp) return fail_with("create_qp", qp.error().what());
  if (const int error = initialise(**qp, access::kRemoteWrite); error != 0)
    return fail_with("queue pair to INIT", std::strerror(error));

  // 4. The reader posts a receive without a buffer. The immediate data of the WRITE will consume it.
  if (!writer)
    if (const int error = (*qp)->post_recv({}); error != 0) return fail_with("post_recv", std::strerror(error));

  // 5. Exchange addresses outside RDMA, here by a socket. GID index 1 is the host's IPv4 address.
  auto gid = (*device)->query_gid(1, 1);
  if (!gid) return fail_with("query_gid port 1 index 1", gid.error().what());
  const Address mine{gid->gid, (*qp)->number(), (*mr)->rkey(), addr};
  Address peer;
  if (send(peer_socket, &mine, sizeof mine, MSG_NOSIGNAL) < 0)
    return fail_with("send of the address", std::strerror(errno));
  const ssize_t bytes = recv(peer_socket, &peer, sizeof peer, 0);
  if (bytes < 0) return fail_with("recv of the peer's address", std::strerror(errno));
  if (bytes != sizeof peer) return fail_with("recv of the peer's address", "the peer exited");

  // 6. Take the queue pair to RTR (ready to receive) and RTS (ready to send). If the peer is not that far yet, RC
  //    repeats the request until it is.
  if (const int error = connect_initialised(**qp, {.dgid = peer.gid, .dest_qp_num = peer.qp_num}); error != 0)
    return fail_with("queue pair to RTR and RTS", std::strerror(error));

  // 7. The reader waits for its receive to complete. From then on all bytes of the WRITE are in its memory.
  if (!writer) {
    if (wait_for_completion(**cq, "receive") != 0) return 1;
    std::printf("received: %.16s\n", buffer);
    return 0;
  }

  // 8. The writer posts one RDMA WRITE with immediate data, and waits for its completion. Only then it may reuse the
  //    buffer: the responder has acknowledged the request.
  std::memcpy(buffer, "hello from NUPA!", sizeof buffer);
  const Sge sge{addr, sizeof buffer, (*mr)->lkey()};
  const SendWr wr{.sg_list = &sge,
                  .num_sge = 1,
                  .opcode = Opcode::kRdmaWriteWithImm,
                  .flags = send_flag::kSignaled,
                  .imm_or_rkey = htonl(1),
                  .rkey = peer.rkey,
                  .remote_addr = peer.addr};
  if (const int error = (*qp)->post_send(wr); error != 0) return fail_with("post_send", std::strerror(error));
  return wait_for_completion(**cq, "RDMA WRITE");
}

int main() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) return fail_with("socketpair", std::strerror(errno));
  const pid_t child = fork();  // before either process opens the device
  if (child < 0) return fail_with("fork", std::strerror(errno));
  close(sockets[child == 0 ? 0 : 1]);  // so that recv() returns 0 when the other process exits
  if (child == 0) return run(false, sockets[1]);
  const int failed = run(true, sockets[0]);
  close(sockets[0]);
  int status = 0;
  if (waitpid(child, &status, 0) < 0) return fail_with("waitpid", std::strerror(errno));
  if (WIFSIGNALED(status)) return fail_with("reader", strsignal(WTERMSIG(status)));
  return failed != 0 || status != 0;
}
