"""Measuring: policies against each other on real tasks."""
