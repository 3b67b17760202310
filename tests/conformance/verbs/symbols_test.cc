// SPDX-License-Identifier: Apache-2.0
/// The drop-in can replace the system's library only if it has the same symbols in the same versions.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "fixture.h"

// Exported, but declared in no header that programs get.
extern "C" int ibv_read_sysfs_file(const char* folder, const char* file, char* buffer, size_t size);

namespace nupa::test {
namespace {

#if defined(__x86_64__)
constexpr const char* kSystemLibrary = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
#else
constexpr const char* kSystemLibrary = "/usr/lib/aarch64-linux-gnu/libibverbs.so.1";
#endif

/// "name@version" or, for the default one, "name@@version", with 'D' in front of data.
std::set<std::string> exported(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::set<std::string> names;
  if (bytes.size() < sizeof(Elf64_Ehdr)) return names;
  const char* base = bytes.data();
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(base);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header->e_shoff);
  const Elf64_Shdr* symbols = nullptr;
  const Elf64_Shdr* versions = nullptr;
  const Elf64_Shdr* definitions = nullptr;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type == SHT_DYNSYM) symbols = &sections[i];
    if (sections[i].sh_type == SHT_GNU_versym) versions = &sections[i];
    if (sections[i].sh_type == SHT_GNU_verdef) definitions = &sections[i];
  }
  if (symbols == nullptr || versions == nullptr || definitions == nullptr) return names;
  const char* strings = base + sections[symbols->sh_link].sh_offset;
  std::map<unsigned, std::string> nodes;
  const char* at = base + definitions->sh_offset;
  for (;;) {
    const auto* definition = reinterpret_cast<const Elf64_Verdef*>(at);
    const auto* name = reinterpret_cast<const Elf64_Verdaux*>(at + definition->vd_aux);
    nodes[definition->vd_ndx] = strings + name->vda_name;
    if (definition->vd_next == 0) break;
    at += definition->vd_next;
  }
  const auto* symbol = reinterpret_cast<const Elf64_Sym*>(base + symbols->sh_offset);
  const auto* version = reinterpret_cast<const Elf64_Half*>(base + versions->sh_offset);
  constexpr unsigned kHidden = 0x8000;
  for (size_t i = 1; i < symbols->sh_size / sizeof *symbol; ++i) {
    const unsigned type = ELF64_ST_TYPE(symbol[i].st_info);
    if (symbol[i].st_shndx == SHN_UNDEF || symbol[i].st_shndx == SHN_ABS || (type != STT_FUNC && type != STT_OBJECT))
      continue;
    names.insert((type == STT_OBJECT ? "D " : "F ") + std::string(strings + symbol[i].st_name) +
                 ((version[i] & kHidden) != 0 ? "@" : "@@") + nodes[version[i] & ~kHidden]);
  }
  return names;
}

std::string own_library() {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(&ibv_get_device_list), &info) != 0 ? info.dli_fname : "";
}

/// Symbols that rdma-core has since later releases than the system's.
bool is_of_later_release(const std::string& symbol) {
  for (const char* node : {"@IBVERBS_PRIVATE_57", "@IBVERBS_PRIVATE_59", "@IBVERBS_PRIVATE_64", "@IBVERBS_PRIVATE_65",
                           "@IBVERBS_1.15", "@IBVERBS_1.16", "@IBVERBS_1.17", "@IBVERBS_1.18"})
    if (symbol.ends_with(node)) return true;
  return symbol == "F ibv_cmd_create_cq_ex2@@IBVERBS_PRIVATE_34" || symbol == "F ibv_wr_opcode_str@@IBVERBS_PRIVATE_34";
}

TEST(VerbsSymbols, Symbols_EqualThoseOfTheSystemsLibrary) {
  const std::set<std::string> theirs = exported(kSystemLibrary);
  if (theirs.empty()) GTEST_SKIP() << kSystemLibrary << " is not there to compare with";
  const std::set<std::string> ours = exported(own_library());
  std::vector<std::string> missing, extra;
  std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(), std::back_inserter(missing));
  std::set_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(extra));
  EXPECT_EQ(missing, std::vector<std::string>{});
  std::erase_if(extra, is_of_later_release);
  // For the other libraries of NUPA (src/verbs/private.h), in a version of its own.
  EXPECT_EQ(extra, (std::vector<std::string>{"F nupa_verbs_post_inline@@NUPA_PRIVATE",
                                             "F nupa_verbs_signal_descriptor@@NUPA_PRIVATE"}));
  EXPECT_GE(ours.size(), 180u);
}

TEST(VerbsSymbols, PrivateSymbols_EachNode_HasThoseOfTheFirst) {
  const std::set<std::string> ours = exported(own_library());
  const std::string first = "@@IBVERBS_PRIVATE_34";
  size_t found = 0;
  for (const std::string& symbol : ours) {
    const size_t at = symbol.find(first);
    if (at == symbol.npos) continue;
    ++found;
    const std::string name = symbol.substr(0, at);
    const bool registers = name == "F verbs_register_driver_34";  // each node has another name
    for (const char* node : {"57", "59", "64", "65"}) {
      const std::string wanted = registers
                                     ? std::string("F verbs_register_driver_") + node + "@@IBVERBS_PRIVATE_" + node
                                     : name + "@IBVERBS_PRIVATE_" + node;
      EXPECT_TRUE(ours.contains(wanted)) << wanted;
    }
  }
  EXPECT_GE(found, 73u);
}

TEST(VerbsSymbols, LaterPrivateSymbols_FailWithAnError) {
  void* self = dlopen(own_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(self, nullptr);
  const auto find = [&](const char* name) { return dlvsym(self, name, "IBVERBS_PRIVATE_65"); };
  for (const char* name :
       {"ibv_cmd_alloc_dmah", "ibv_cmd_create_comp_cntr", "ibv_cmd_export_dmabuf_fd", "ibv_cmd_reg_mr_ex"}) {
    auto* command = reinterpret_cast<int (*)()>(find(name));
    ASSERT_NE(command, nullptr) << name;
    errno = 0;
    EXPECT_EQ(command(), EOPNOTSUPP) << name;
    EXPECT_EQ(errno, EOPNOTSUPP) << name;
  }
  auto* heap = reinterpret_cast<void* (*)()>(find("ibv_dmabuf_heap_cc_shared_init"));
  ASSERT_NE(heap, nullptr);
  EXPECT_EQ(heap(), nullptr);
  auto* text = reinterpret_cast<const char* (*)(int)>(find("ibv_wr_opcode_str"));
  ASSERT_NE(text, nullptr);
  EXPECT_STREQ(text(IBV_WR_SEND_WITH_INV), "send-with-inv");
  EXPECT_STREQ(text(12), "unknown");
  dlclose(self);
}

TEST(VerbsSymbols, LoadedLibrary_IsTheDropIn) {
  const std::string path = own_library();
  EXPECT_NE(path.find("nupa"), std::string::npos) << path;
}

TEST(VerbsSymbols, OldSymbols_FailWithAnError) {
  void* self = dlopen(own_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(self, nullptr);
  auto* old_alloc_pd = reinterpret_cast<void* (*)(void*)>(dlvsym(self, "ibv_alloc_pd", "IBVERBS_1.0"));
  auto* old_modify_qp = reinterpret_cast<int (*)(void*, void*, int)>(dlvsym(self, "ibv_modify_qp", "IBVERBS_1.0"));
  auto* read_file =
      reinterpret_cast<int (*)(void*, char*, size_t)>(dlvsym(self, "ibv_read_ibdev_sysfs_file", "IBVERBS_PRIVATE_34"));
  auto* cmd_poll = reinterpret_cast<int (*)(void*, int, void*)>(dlvsym(self, "ibv_cmd_poll_cq", "IBVERBS_PRIVATE_34"));
  ASSERT_TRUE(old_alloc_pd != nullptr && old_modify_qp != nullptr && read_file != nullptr && cmd_poll != nullptr);
  errno = 0;
  EXPECT_EQ(old_alloc_pd(nullptr), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  EXPECT_EQ(old_modify_qp(nullptr, nullptr, 0), ENOSYS);
  // A positive answer of these two would be a number of bytes or completions.
  EXPECT_LT(read_file(nullptr, nullptr, 0), 0);
  EXPECT_LT(cmd_poll(nullptr, 1, nullptr), 0);
  dlclose(self);
}

TEST(VerbsSymbols, Providers_LoadWithTheDropIn) {
  // Their references are bound at load time: one that is missing makes dlopen fail.
  for (const char* provider : {"libmlx5.so.1", "libefa.so.1"}) {
    void* loaded = dlopen(provider, RTLD_NOW | RTLD_LOCAL);
    const char* why = loaded == nullptr ? dlerror() : "";
    if (loaded == nullptr && std::string(why).find("No such file") != std::string::npos) continue;
    ASSERT_NE(loaded, nullptr) << why;
    // Their own question, whether the device is theirs, reads behind ibv_device.
    auto* supported = reinterpret_cast<bool (*)(ibv_device*)>(dlsym(loaded, "mlx5dv_is_supported"));
    ibv_device** list = ibv_get_device_list(nullptr);
    ASSERT_NE(list, nullptr);
    EXPECT_TRUE(supported == nullptr || !supported(list[0]));
    ibv_free_device_list(list);
    dlclose(loaded);
  }
}

TEST(VerbsSymbols, SysfsFileAsLongAsTheBuffer_IsAnErrorUnlessItEndsInANewline) {
  const int fd = memfd_create("attribute", MFD_CLOEXEC);
  ASSERT_EQ(pwrite(fd, "abcd", 4, 0), 4);
  const std::string name = std::to_string(fd);
  char buffer[8];
  const auto read_with_room = [&](size_t size) {
    std::memset(buffer, '#', sizeof buffer);
    return ibv_read_sysfs_file("/proc/self/fd", name.c_str(), buffer, size);
  };
  EXPECT_EQ(read_with_room(5), 4);
  EXPECT_STREQ(buffer, "abcd");
  EXPECT_EQ(read_with_room(4), -1);
  EXPECT_EQ(buffer[4], '#') << "it is behind the buffer";
  ASSERT_EQ(pwrite(fd, "abc\n", 4, 0), 4);
  EXPECT_EQ(read_with_room(4), 3);
  EXPECT_STREQ(buffer, "abc");
  close(fd);
}

/// Numbers that two libraries must agree upon.
TEST(VerbsNames, Rates_EqualThoseOfTheSystemsLibrary) {
  void* system = dlopen(kSystemLibrary, RTLD_NOW | RTLD_LOCAL);
  if (system == nullptr) GTEST_SKIP() << dlerror();
  auto* to_mult = reinterpret_cast<int (*)(ibv_rate)>(dlsym(system, "ibv_rate_to_mult"));
  auto* to_mbps = reinterpret_cast<int (*)(ibv_rate)>(dlsym(system, "ibv_rate_to_mbps"));
  auto* from_mult = reinterpret_cast<ibv_rate (*)(int)>(dlsym(system, "mult_to_ibv_rate"));
  auto* from_mbps = reinterpret_cast<ibv_rate (*)(int)>(dlsym(system, "mbps_to_ibv_rate"));
  ASSERT_TRUE(to_mult != nullptr && to_mbps != nullptr && from_mult != nullptr && from_mbps != nullptr);
  ASSERT_NE(reinterpret_cast<void*>(to_mult), reinterpret_cast<void*>(&ibv_rate_to_mult)) << "not the system's";
  for (int i = -1; i < 40; ++i) {
    const auto rate = static_cast<ibv_rate>(i);
    EXPECT_EQ(ibv_rate_to_mult(rate), to_mult(rate)) << i;
    EXPECT_EQ(ibv_rate_to_mbps(rate), to_mbps(rate)) << i;
    const int mbps = to_mbps(rate);
    EXPECT_EQ(mbps_to_ibv_rate(mbps), from_mbps(mbps)) << mbps;
  }
  for (int mult = -1; mult < 600; ++mult) EXPECT_EQ(mult_to_ibv_rate(mult), from_mult(mult)) << mult;
  dlclose(system);
}

TEST(VerbsNames, Texts_EqualThoseOfTheSystemsLibrary) {
  void* system = dlopen(kSystemLibrary, RTLD_NOW | RTLD_LOCAL);
  if (system == nullptr) GTEST_SKIP() << dlerror();
  const auto expect_same = [&](const char* function, const char* (*own)(int), int last) {
    auto* its = reinterpret_cast<const char* (*)(int)>(dlsym(system, function));
    ASSERT_TRUE(its != nullptr && its != own) << function;
    for (int value = -1; value <= last + 1; ++value) EXPECT_STREQ(own(value), its(value)) << function << " " << value;
  };
  // As C programs call them, for which an enumeration is a number.
  const auto as_of_number = [](auto* function) { return reinterpret_cast<const char* (*)(int)>(function); };
  expect_same("ibv_wc_status_str", as_of_number(ibv_wc_status_str), IBV_WC_TM_RNDV_INCOMPLETE);
  expect_same("ibv_event_type_str", as_of_number(ibv_event_type_str), IBV_EVENT_WQ_FATAL);
  expect_same("ibv_node_type_str", as_of_number(ibv_node_type_str), IBV_NODE_UNSPECIFIED);
  expect_same("ibv_port_state_str", as_of_number(ibv_port_state_str), IBV_PORT_ACTIVE_DEFER);
  dlclose(system);
}

TEST(VerbsNames, Texts_OfAnyValue_AreNotNull) {
  for (int i = -1; i < 64; ++i) {
    EXPECT_NE(ibv_wc_status_str(static_cast<ibv_wc_status>(i)), nullptr) << i;
    EXPECT_NE(ibv_event_type_str(static_cast<ibv_event_type>(i)), nullptr) << i;
    EXPECT_NE(ibv_node_type_str(static_cast<ibv_node_type>(i)), nullptr) << i;
    EXPECT_NE(ibv_port_state_str(static_cast<ibv_port_state>(i)), nullptr) << i;
  }
  std::set<std::string> texts;
  for (int i = IBV_WC_SUCCESS; i <= IBV_WC_TM_RNDV_INCOMPLETE; ++i)
    texts.insert(ibv_wc_status_str(static_cast<ibv_wc_status>(i)));
  EXPECT_EQ(texts.size(), static_cast<size_t>(IBV_WC_TM_RNDV_INCOMPLETE + 1));
  EXPECT_EQ(texts.count(ibv_wc_status_str(static_cast<ibv_wc_status>(1000))), 0u);
}

}  // namespace
}  // namespace nupa::test
