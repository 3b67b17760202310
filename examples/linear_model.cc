// SPDX-License-Identifier: Apache-2.0
/// The ranks of a job fit one model, y = 3x - 2, to noisy data; each rank has a part of the data. A persistent
/// all_reduce averages the gradient over all ranks in each step.
///
///     nupa launch -n 4 -- build/examples/linear_model
#include <nupa/ccl.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  using namespace nupa::collectives;
  constexpr size_t kPoints = 10'000;
  constexpr int kSteps = 200;
  constexpr double kRate = 0.1;
  try {
    Communicator world;
    std::mt19937 random(world.rank());
    std::normal_distribution<double> normal;
    std::vector<std::array<double, 2>> points(kPoints);
    for (auto& [x, y] : points) {
      x = normal(random);
      y = 3 * x - 2 + 0.1 * normal(random);
    }

    std::array<double, 2> model{};           // slope and intercept, the same on all ranks
    std::array<double, 3> gradient_error{};  // for this rank's points; after the all_reduce for all points
    Group group;
    world.all_reduce(gradient_error, gradient_error, kAverage);
    Persistent average = group.keep();
    for (int step = 0; step < kSteps; ++step) {
      gradient_error = {};
      for (const auto& [x, y] : points) {
        const double error = model[0] * x + model[1] - y;
        gradient_error[0] += 2 * error * x / kPoints;
        gradient_error[1] += 2 * error / kPoints;
        gradient_error[2] += error * error / kPoints;
      }
      average.run();
      model[0] -= kRate * gradient_error[0];
      model[1] -= kRate * gradient_error[1];
      if (world.rank() == 0 && (step & (step + 1)) == 0)
        std::printf("step %3d: y = %.4f x %+.4f, mean error %.4f\n", step, model[0], model[1],
                    std::sqrt(gradient_error[2]));
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "linear_model: %s\n", error.what());
    return 1;
  }
}
