/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of an MPI as bench/collectives.py measures them: lines "operation bytes microseconds", of rank 0.
 *
 *     mpicc -O2 mpi_collectives.c && mpirun -n 2 ./a.out LEAST MOST FACTOR SECONDS
 *
 * Sizes are those of `nupa ccl bench`. Times are the median of batches, each rank's slowest. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBatches = 9 };

static int g_ranks, g_rank;
static float *g_in, *g_out;

static void all_reduce(int count) { MPI_Allreduce(g_in, g_out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void broadcast(int count) { MPI_Bcast(g_in, count, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void all_gather(int count) {
  MPI_Allgather(g_in, count, MPI_FLOAT, g_out, count, MPI_FLOAT, MPI_COMM_WORLD);
}
static void reduce_scatter(int count) { MPI_Reduce_scatter_block(g_in, g_out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void all_to_all(int count) {
  MPI_Alltoall(g_in, count, MPI_FLOAT, g_out, count, MPI_FLOAT, MPI_COMM_WORLD);
}

static const struct {
  const char* name;
  void (*run)(int count);
  int is_total; /* its size is that of all ranks' blocks */
} kOperations[] = {{"all_reduce", all_reduce, 0},
                   {"broadcast", broadcast, 0},
                   {"all_gather", all_gather, 1},
                   {"reduce_scatter", reduce_scatter, 1},
                   {"all_to_all", all_to_all, 1}};

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Seconds of so many calls, on the slowest rank. */
static double batch(void (*run)(int), int count, long calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  double began = MPI_Wtime();
  for (long i = 0; i < calls; ++i) run(count);
  double took = MPI_Wtime() - began, slowest;
  MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

static double median_us(void (*run)(int), int count, double seconds) {
  long calls = 1;
  batch(run, count, calls);
  double took = batch(run, count, calls);
  while (took < seconds / kBatches / 4 && calls < (1L << 30)) {
    calls *= 4;
    took = batch(run, count, calls);
  }
  double all[kBatches];
  for (int i = 0; i < kBatches; ++i) all[i] = batch(run, count, calls) / calls * 1e6;
  qsort(all, kBatches, sizeof all[0], compare);
  return all[kBatches / 2];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &g_ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  if (argc < 5) {
    fprintf(stderr, "usage: %s LEAST MOST FACTOR SECONDS [OPERATION...]\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const size_t least = strtoull(argv[1], NULL, 10), most = strtoull(argv[2], NULL, 10);
  const size_t factor = strtoull(argv[3], NULL, 10);
  const double seconds = atof(argv[4]);
  g_in = aligned_alloc(4096, (most + 8191) / 4096 * 4096);
  g_out = aligned_alloc(4096, (most + 8191) / 4096 * 4096);
  for (size_t i = 0; i < most / 4; ++i) g_in[i] = 1, g_out[i] = 0;
  for (size_t o = 0; o < sizeof kOperations / sizeof kOperations[0]; ++o) {
    int wanted = argc == 5;
    for (int i = 5; i < argc; ++i) wanted |= strcmp(argv[i], kOperations[o].name) == 0;
    if (!wanted) continue;
    for (size_t bytes = least; bytes <= most; bytes *= factor) {
      const size_t count = bytes / 4 / (kOperations[o].is_total ? g_ranks : 1);
      if (count == 0) continue;
      const double us = median_us(kOperations[o].run, (int)count, seconds);
      if (g_rank == 0) printf("%s %zu %.4f\n", kOperations[o].name, bytes, us), fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
