"""ResNet-50 inference: channels-last layout, chosen by hand and by weft.

    python examples/resnet_layout.py [--device cuda] [--batch 4] [--size 224]

Convolutions are faster where the channels of a pixel lie together in memory. Eager PyTorch does so
for a model and an image that were converted; weft's layout pass does it inside the graph, for any
model, and gives the result back in the layout that eager would have.
"""

import argparse

import torch
import transformers

import weft


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
    model = model.eval().to(arguments.device)
    shape = (arguments.batch, 3, arguments.size, arguments.size)
    images = torch.randn(shape, device=arguments.device)
    with torch.no_grad():
        expected = model(images).logits
        compiled = weft.compile(model)
        logits = compiled(images).logits
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
        assert logits.stride() == expected.stride(), "the layout inside must not be seen outside"
        print(f"graphs {weft.stats()['graphs']}, breaks {weft.stats()['graph_breaks']}")
        print(weft.benchmark(model, images, seconds=arguments.seconds))

        model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(compiled(images).logits, expected, rtol=1e-3, atol=1e-3)
        print("Image and model in channels-last memory:")
        print(weft.benchmark(model, images, seconds=arguments.seconds))


if __name__ == "__main__":
    main()
