// SPDX-License-Identifier: Apache-2.0
/// rdma_getaddrinfo(3): converts names and services to addresses, as getaddrinfo does. ibacm is not supported, so
/// routes and private data of connections (ai_route, ai_connect) stay empty. rdma-core leaves them empty, too, where no
/// ibacm runs.
#include <infiniband/ib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#define NUPA_RDMACM extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kPortSpaceShift = 16;        // for the service id of an IP service (IBTA annex A11): port space, port
constexpr uint16_t kDefaultPkey = 0xffff;  // full member of the default partition (IBTA 10.9.1.2)

struct AddressListDelete {
  void operator()(rdma_addrinfo* list) const { rdma_freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<rdma_addrinfo, AddressListDelete>;

int fail(int error) {
  errno = error;
  return -1;
}

/// Converts a port space and a queue pair type to hints for getaddrinfo, which rejects impossible combinations.
addrinfo question_of(const rdma_addrinfo& hints) {
  addrinfo question{};
  if ((hints.ai_flags & RAI_PASSIVE) != 0) question.ai_flags |= AI_PASSIVE;
  if ((hints.ai_flags & RAI_NUMERICHOST) != 0) question.ai_flags |= AI_NUMERICHOST;
  // GIDs are written like IPv6 addresses.
  if (hints.ai_family != AF_IB) question.ai_family = hints.ai_family;
  switch (hints.ai_qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      question.ai_socktype = SOCK_STREAM;
      break;
    case IBV_QPT_UD:
      question.ai_socktype = SOCK_DGRAM;
      break;
    default:
      break;
  }
  switch (hints.ai_port_space) {
    case RDMA_PS_TCP:
      question.ai_protocol = IPPROTO_TCP;
      break;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
      question.ai_protocol = IPPROTO_UDP;
      break;
    case RDMA_PS_IB:
      // This port space has both types.
      if (question.ai_socktype == SOCK_STREAM) question.ai_protocol = IPPROTO_TCP;
      if (question.ai_socktype == SOCK_DGRAM) question.ai_protocol = IPPROTO_UDP;
      break;
    default:
      break;
  }
  return question;
}

/// Copies the address to memory that rdma_freeaddrinfo and programs release with free().
bool copy_address(const void* from, socklen_t length, sockaddr** to, socklen_t* to_length) {
  *to = static_cast<sockaddr*>(std::malloc(length));
  if (*to == nullptr) return false;
  std::memcpy(*to, from, length);
  *to_length = length;
  return true;
}

/// Returns the IP address as a GID (IBTA annex A17) with the service id of its port (annex A11).
sockaddr_ib ib_address(const sockaddr& address, int port_space) {
  sockaddr_ib ib{};
  ib.sib_family = AF_IB;
  ib.sib_pkey = htobe16(kDefaultPkey);
  uint16_t port = 0;
  if (address.sa_family == AF_INET6) {
    sockaddr_in6 ip;
    std::memcpy(&ip, &address, sizeof ip);
    port = ip.sin6_port;
    ib.sib_flowinfo = ip.sin6_flowinfo;
    ib.sib_scope_id = ip.sin6_scope_id;
    std::memcpy(&ib.sib_addr, &ip.sin6_addr, sizeof ib.sib_addr);
  } else {
    sockaddr_in ip;
    std::memcpy(&ip, &address, sizeof ip);
    port = ip.sin_port;
    ib.sib_addr.sib_addr16[5] = 0xffff;
    ib.sib_addr.sib_addr32[3] = ip.sin_addr.s_addr;
  }
  ib.sib_sid = htobe64((static_cast<uint64_t>(port_space) << kPortSpaceShift) + be16toh(port));
  uint64_t mask = port_space != 0 ? RDMA_IB_IP_PS_MASK : 0;
  if (port != 0) mask |= RDMA_IB_IP_PORT_MASK;
  ib.sib_sid_mask = htobe64(mask);
  return ib;
}

int qp_type_of(int socktype) {
  if (socktype == SOCK_STREAM) return IBV_QPT_RC;
  return socktype == SOCK_DGRAM ? IBV_QPT_UD : 0;
}

int port_space_of(int protocol) {
  if (protocol == IPPROTO_TCP) return RDMA_PS_TCP;
  return protocol == IPPROTO_UDP ? RDMA_PS_UDP : 0;
}

/// Returns false if there is no memory.
bool fill_from(const addrinfo& answer, const rdma_addrinfo& hints, rdma_addrinfo* result) {
  const bool passive = (answer.ai_flags & AI_PASSIVE) != 0;
  if (passive) result->ai_flags = RAI_PASSIVE;
  result->ai_qp_type = hints.ai_qp_type != 0 ? hints.ai_qp_type : qp_type_of(answer.ai_socktype);
  result->ai_port_space = hints.ai_port_space != 0 ? hints.ai_port_space : port_space_of(answer.ai_protocol);
  char** name = passive ? &result->ai_src_canonname : &result->ai_dst_canonname;
  if (answer.ai_canonname != nullptr && (*name = strdup(answer.ai_canonname)) == nullptr) return false;
  sockaddr** address = passive ? &result->ai_src_addr : &result->ai_dst_addr;
  socklen_t* length = passive ? &result->ai_src_len : &result->ai_dst_len;
  constexpr int kIbNumber = RAI_FAMILY | RAI_NUMERICHOST;
  if (hints.ai_family == AF_IB && (hints.ai_flags & kIbNumber) == kIbNumber) {
    const sockaddr_ib ib = ib_address(*answer.ai_addr, result->ai_port_space);
    result->ai_family = AF_IB;
    return copy_address(&ib, sizeof ib, address, length);
  }
  result->ai_family = answer.ai_family;
  return copy_address(answer.ai_addr, answer.ai_addrlen, address, length);
}

/// Returns 0 or an errno value. The value may be a negative EAI_ number, because rdma-core's callers expect these in
/// errno.
int resolve(const char* node, const char* service, const rdma_addrinfo* hints, rdma_addrinfo* result) {
  static constexpr rdma_addrinfo kNone{};
  // Without hints, getaddrinfo uses its default flags (AI_ADDRCONFIG, AI_V4MAPPED).
  const addrinfo question = hints != nullptr ? question_of(*hints) : addrinfo{};
  addrinfo* list = nullptr;
  const int error = getaddrinfo(node, service, hints != nullptr ? &question : nullptr, &list);
  if (error == EAI_SYSTEM) return errno;
  if (error != 0) return error;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> holder(list, freeaddrinfo);
  return fill_from(*list, hints != nullptr ? *hints : kNone, result) ? 0 : ENOMEM;
}

/// Without a name, the result is the caller's destination.
bool repeat(const rdma_addrinfo& hints, rdma_addrinfo* result) {
  result->ai_flags = hints.ai_flags;
  result->ai_family = hints.ai_family;
  result->ai_qp_type = hints.ai_qp_type;
  result->ai_port_space = hints.ai_port_space;
  return hints.ai_dst_len == 0 ||
         copy_address(hints.ai_dst_addr, hints.ai_dst_len, &result->ai_dst_addr, &result->ai_dst_len);
}

}  // namespace

/// Returns one entry, the first of getaddrinfo. On failure returns -1 and sets errno: EINVAL if there are no arguments,
/// ENOMEM, or the number from getaddrinfo, such as EAI_NONAME, for gai_strerror().
NUPA_RDMACM int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                                 rdma_addrinfo** res) {
  if (node == nullptr && service == nullptr && hints == nullptr) return fail(EINVAL);
  AddressList result(static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo))));
  if (!result) return fail(ENOMEM);
  if (node != nullptr || service != nullptr) {
    if (const int error = resolve(node, service, hints, result.get()); error != 0) return fail(error);
  } else if (!repeat(*hints, result.get())) {
    return fail(ENOMEM);
  }
  if (result->ai_src_len == 0 && hints != nullptr && hints->ai_src_len != 0 &&
      !copy_address(hints->ai_src_addr, hints->ai_src_len, &result->ai_src_addr, &result->ai_src_len))
    return fail(ENOMEM);
  *res = result.release();
  return 0;
}

NUPA_RDMACM void rdma_freeaddrinfo(rdma_addrinfo* res) {
  while (res != nullptr) {
    rdma_addrinfo* next = res->ai_next;
    for (void* part : {static_cast<void*>(res->ai_src_addr), static_cast<void*>(res->ai_dst_addr),
                       static_cast<void*>(res->ai_src_canonname), static_cast<void*>(res->ai_dst_canonname),
                       res->ai_route, res->ai_connect})
      std::free(part);
    std::free(res);
    res = next;
  }
}
